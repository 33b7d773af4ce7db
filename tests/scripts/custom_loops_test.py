"""The program of the page about custom loops, and tables that such programs make without layers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers
from tests.scripts.documents import run_launcher

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples/keras/custom_loop.py"

pytestmark = pytest.mark.skipif(
    getattr(tf.keras, "__version__", "2") < "3", reason="TensorFlow before 2.16 has no Keras 3"
)


def test_the_page_begins_with_the_example():
    page = (ROOT / "docs/custom_loops.md").read_text()
    assert PROGRAM.read_text().endswith('"""\n\n' + re.search(r"```python\n(.*?)```", page, re.S)[1])


def test_two_workers_print_the_losses_of_one_with_twice_the_batch(tmp_path):
    losses = []
    for workers in (1, 2):
        (tmp_path / "main.py").write_text(PROGRAM.read_text().replace("batch(64)", f"batch({128 // workers})"))
        words = [sys.executable, "-m", "lockstep.launch", "-n", str(workers), sys.executable, "main.py"]
        outputs = run_launcher(words, tmp_path, workers, {"CUDA_VISIBLE_DEVICES": ""}, timeout_s=300)
        losses += [[float(loss) for loss in re.findall(r"loss (\S+)", output)] for output in outputs]
    one, *two = losses
    assert len(one) == 3 and one[-1] < 0.5 * one[0]
    np.testing.assert_allclose(two, [one, one], atol=2e-4)  # 4 digits are printed


RATE, ROWS, STEPS = 0.5, 7, 3
IDS = np.array([[1, 1, 4], [1, 6, 0]])  # by rank


def train_a_variable():
    """Returns a table that is a `tf.Variable`, and a `keras.Variable`, after steps of a loop."""
    import keras

    import lockstep

    ids = tf.constant(IDS[lockstep.rank()])
    with lockstep.scope():
        with lockstep.embedding_scope():
            table = tf.Variable(tf.ones([ROWS, 2]), name="table")
        scale = keras.Variable(np.float32(2 + lockstep.rank()))
        optimizer = keras.optimizers.SGD(RATE)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(scale * tf.nn.embedding_lookup(table, ids))
            optimizer.apply_gradients(zip(tape.gradient(loss, [table, scale.value]), [table, scale], strict=True))

        for _ in range(STEPS):
            step()
        return type(table).__name__, table.numpy(), scale.numpy()


def test_variables_of_a_program_train_on_the_rows_of_all_workers():
    table, scale = np.ones(ROWS), 2.0
    for _ in range(STEPS):
        rows = IDS.ravel()
        slope = table[rows].mean()
        np.subtract.at(table, rows, RATE * scale / 2 / len(rows))  # the mean is also over the two columns
        scale -= RATE * slope
    for kind, rows, factor in call_workers(train_a_variable, 2, timeout_s=120):
        assert kind == "RowShardedTable"
        np.testing.assert_allclose(rows, np.stack([table, table], 1), rtol=1e-5)
        np.testing.assert_allclose(factor, scale, rtol=1e-5)
