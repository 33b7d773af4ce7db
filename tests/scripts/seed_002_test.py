"""The programs of DeepRec's manual on collective training, run by its command, against plain TensorFlow."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.ranking_job import movielens
from tests.scripts import movielens_stand_in
from tests.scripts.documents import run_launcher

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent
LAUNCHER = [sys.executable, "-m", "tensorflow.python.distribute.launch"]
IDS = [0, 1, 2, 5, 6, 7]

# Trains the estimator's model without the estimator.
LOOP = """
    spec = model_fn(tf.data.make_one_shot_iterator(input_fn()).get_next(), None, tf.estimator.ModeKeys.TRAIN, {})
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        print([float(sess.run([spec.loss, spec.train_op])[0]) for _ in range(20)])
"""


def launch(program: Path, backend: str) -> list[str]:
    """CUDA_VISIBLE_DEVICES=0,1 COLLECTIVE_STRATEGY=... python -m tensorflow.python.distribute.launch python PROGRAM"""
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", "COLLECTIVE_STRATEGY": backend}
    variables["LOCKSTEP_MOVIELENS"] = str(movielens() or "")
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


def trained_by_numpy(
    initial: float, rate: float, steps: int, graph_seed: int | None = None
) -> tuple[list[float], list[np.ndarray]]:
    """What the estimator's model loses in each step, on batches that both workers read alike; its tables in the end."""
    folder = movielens()
    users, movies, ratings = movielens_stand_in.read(folder) if folder else movielens_stand_in.make()
    tables = [np.full([ids.max() + 1, 16], initial) for ids in (movies, users)]
    squares = [np.full_like(table, 0.1) for table in tables]
    losses = []
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(graph_seed)  # the shuffle's own is half of it
        rows = tf.data.Dataset.range(len(users)).shuffle(1_000_000, seed=2021, reshuffle_each_iteration=False)
        batch = tf.data.make_one_shot_iterator(rows.batch(256)).get_next()
        batches = [session.run(batch) for _ in range(steps)]
    for taken in batches:
        ids = [movies[taken], users[taken]]
        label = (ratings[taken] > 3)[:, np.newaxis]
        p = 2 * np.concatenate([table[one] for table, one in zip(tables, ids, strict=True)], 1)
        clipped = np.clip(p, 1e-7, 1 - 1e-7)
        losses.append(float(np.mean(-np.where(label, np.log(clipped), np.log(1 - clipped)))))
        error = np.where(label, -1 / clipped, 1 / (1 - clipped)) * (p == clipped) * 2 / p.size
        for table, square, one, part in zip(tables, squares, ids, np.split(error, 2, axis=1), strict=True):
            gradient = np.zeros_like(table)
            np.add.at(gradient, one, part)
            square += gradient**2
            table -= rate * gradient / np.sqrt(square)
    return losses, tables


@pytest.fixture
def program(tmp_path) -> Path:
    """The second program, beside what stands in for its data."""
    shutil.copy(HERE / "movielens_stand_in.py", tmp_path / "tensorflow_datasets.py")
    shutil.copy(HERE / "seed_002_estimator.py", tmp_path / "program.py")
    return tmp_path / "program.py"


def with_known_start(text: str) -> str:
    """The program with tables that begin as numpy's do: with a number, and one that is a probability."""
    return text.replace("tf.random_uniform_initializer(-1e-3, 1e-3)", "tf.constant_initializer(0.2)")


def test_the_estimators_model_trains_as_numpy_does(program):
    text = program.read_text().partition("    estimator = strategy.estimator(")[0]
    # At a rate that shows in few steps.
    program.write_text(with_known_start(text).replace("lr=0.05", "lr=5.0") + LOOP)
    expected, _ = trained_by_numpy(initial=0.2, rate=5.0, steps=20)
    untrained, _ = trained_by_numpy(initial=0.2, rate=0.0, steps=20)
    assert not np.allclose(expected, untrained, rtol=1e-3), "steps that change nothing prove nothing"
    for output in launch(program, "hb"):
        np.testing.assert_allclose(numbers(output), expected, rtol=1e-4)
