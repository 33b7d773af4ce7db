"""The programs of DeepRec's manual on collective training, run by its command, against plain TensorFlow."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.scripts.documents import run_launcher

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent
LAUNCHER = [sys.executable, "-m", "tensorflow.python.distribute.launch"]
IDS = [0, 1, 2, 5, 6, 7]


def launch(program: Path, backend: str) -> list[str]:
    """CUDA_VISIBLE_DEVICES=0,1 COLLECTIVE_STRATEGY=... python -m tensorflow.python.distribute.launch python PROGRAM"""
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", "COLLECTIVE_STRATEGY": backend}
    return run_launcher([*LAUNCHER, sys.executable, program.name], program.parent, 2, variables)


def numbers(output: str) -> np.ndarray:
    return np.array([float(word) for word in re.findall(r"-?\d+\.?\d*(?:e[+-]\d+)?", output)])


def after_one_step_of_plain_tensorflow() -> np.ndarray:
    """The variable; the mean over workers that look up the same rows is what one process computes on one of them."""
    with tf.Graph().as_default(), tf.Session() as session:
        var = tf.get_variable("var_1", shape=(1000, 3), initializer=tf.ones_initializer(), use_resource=True)
        loss = tf.reduce_sum(tf.multiply(tf.nn.embedding_lookup(var, IDS), 2.0))
        opt = tf.train.FtrlOptimizer(0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001)
        train_op = opt.apply_gradients(opt.compute_gradients(loss))
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        return session.run(var)


def test_the_session_prints_rows_and_loss_on_both_workers(tmp_path):
    shutil.copy(HERE / "seed_002.py", tmp_path)
    for output in launch(tmp_path / "seed_002.py", "hb"):
        # Rows of ones; 6 rows of 3 elements, doubled.
        np.testing.assert_array_equal(numbers(output), [1.0] * 18 + [36.0])


def test_the_step_is_that_of_one_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text((HERE / "seed_002.py").read_text() + "        print('after', sess.run(var)[:9].tolist())\n")
    expected = after_one_step_of_plain_tensorflow()
    assert len(np.unique(expected[IDS])) == 1 and expected[0, 0] != 1, "a step that changes nothing proves nothing"
    for output in launch(program, "sok"):
        after = numbers(output.partition("after")[2]).reshape(9, 3)
        np.testing.assert_allclose(after, expected[:9], rtol=1e-6)
