"""Each program of the README runs on two workers, as it is written and with the commands beside it.

HybridBackend's program gets a model for `my_model`, and a smaller table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.scripts.documents import run_launcher
from tests.scripts.page_blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
# The README's programs, each with the commands below it.
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)

MODEL = """
import tensorflow as tf

def my_model(user, features):
  return tf.losses.sigmoid_cross_entropy(features['label'], tf.reduce_sum(user, axis=1))

"""


def _first_program(page: str) -> str:
    return next(block.code for block in blocks(ROOT / f"docs/{page}.md") if block.language == "python")


def run(library: str, folder: Path, edit=lambda program: program) -> list[str]:
    """Runs the program that imports a library by the commands below it. Returns the output of each worker."""
    imports = re.compile(rf"^(import|from) {re.escape(library)}\b", re.M)
    ((program, text),) = [block for block in BLOCKS if imports.search(block[0])]
    *preparing, command = [re.sub(r"\s+#.*", "", line).split() for line in text.strip().splitlines()]
    for words in preparing:
        run_launcher([sys.executable, str(ROOT / words[1])], folder, 1, {})
    (folder / command[-1]).write_text(edit(program))
    words = [sys.executable if word == "python" else word for word in command]
    return run_launcher(words, folder, 2, {"CUDA_VISIBLE_DEVICES": ""}, timeout_s=300)


@pytest.mark.skipif(getattr(tf.keras, "__version__", "2") < "3", reason="TensorFlow before 2.16 has no Keras 3")
def test_the_program_of_keras_trains_exports_and_serves(tmp_path):
    first, second = run("lockstep", tmp_path)
    assert "[[" in first and first[first.index("tf.Tensor") :] == second[second.index("tf.Tensor") :]
    aucs = [float(value) for value in re.findall(r"auc: (\S+)", first)]
    assert aucs == [float(value) for value in re.findall(r"auc: (\S+)", second)]
    assert len(aucs) == 3 and aucs[-1] > 0.9
    model = tf.saved_model.load(str(tmp_path / "served"))
    columns = {"user": tf.range(1000, dtype=tf.int64), "query": tf.fill([1000], "unknown words")}
    served = model.serve(columns).numpy()[:, 0]
    assert served[1::2].mean() > served[::2].mean() + 0.3  # users with odd numbers click


def test_the_program_of_keras_is_the_example():
    assert (ROOT / "examples/keras/train.py").read_text().endswith('"""\n\n' + BLOCKS[0][0])


def test_the_program_of_hybridbackend_trains(tmp_path):
    rng = np.random.default_rng(0)
    user = rng.integers(0, 1000, 8192)
    pq.write_table(pa.table({"user": user, "label": (user % 2).astype(np.float32)}), tmp_path / "day_0.parquet")
    run("hybridbackend.tensorflow", tmp_path, lambda program: MODEL + program.replace("1_000_000", "1_000"))
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "ckpt")))
    assert checkpoint.get_tensor("global_step") == 8192 // 1024 // 2
    assert checkpoint.get_variable_to_shape_map()["user"] == [1000, 16]


def test_the_program_of_horovod_is_that_of_its_page_which_another_test_runs():
    assert BLOCKS[2] == (_first_program("horovod"), "horovodrun -np 2 python train.py\n")


def test_the_program_of_deeprec_trains(tmp_path):
    assert len(run("tensorflow.python.distribute.group_embedding_collective_strategy", tmp_path)) == 2
