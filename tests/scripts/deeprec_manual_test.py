"""The programs of DeepRec's manual on collective training, run by its command, against plain TensorFlow."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from tests.ranking_job import movielens
from tests.scripts import movielens_stand_in
from tests.scripts.documents import run_launcher

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent
LAUNCHER = [sys.executable, "-m", "tensorflow.python.distribute.launch"]
IDS = [0, 1, 2, 5, 6, 7]

# The number of ratings: more than 50 steps of training take, and as many as an evaluation of 100 steps takes.
RATINGS = 20_000


def launch(program: Path, backend: str) -> list[str]:
    """Runs CUDA_VISIBLE_DEVICES=0,1 COLLECTIVE_STRATEGY=... python -m tensorflow.python.distribute.launch ..."""
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", "COLLECTIVE_STRATEGY": backend}
    variables |= {"LOCKSTEP_MOVIELENS": str(movielens() or ""), "LOCKSTEP_RATINGS": str(RATINGS)}
    return run_launcher([*LAUNCHER, sys.executable, program.name], program.parent, 2, variables, timeout_s=300)


def numbers(output: str) -> np.ndarray:
    return np.array([float(word) for word in re.findall(r"-?\d+\.?\d*(?:e[+-]\d+)?", output)])


def after_one_step_of_plain_tensorflow() -> np.ndarray:
    """Returns the variable. Both workers look up the same rows, so their mean is the result of a single process."""
    with tf.Graph().as_default(), tf.Session() as session:
        var = tf.get_variable("var_1", shape=(1000, 3), initializer=tf.ones_initializer(), use_resource=True)
        loss = tf.reduce_sum(tf.multiply(tf.nn.embedding_lookup(var, IDS), 2.0))
        opt = tf.train.FtrlOptimizer(0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001)
        train_op = opt.apply_gradients(opt.compute_gradients(loss))
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        return session.run(var)


# Promise (deeprec.md): the manual's first program runs by its command on two workers, prints what it should, and takes
# the step of plain TensorFlow.
def test_the_session_prints_rows_and_loss_on_both_workers(tmp_path):
    shutil.copy(HERE / "deeprec_manual_session.py", tmp_path)
    for output in launch(tmp_path / "deeprec_manual_session.py", "hb"):
        # Rows of ones; 6 rows of 3 elements, doubled.
        np.testing.assert_array_equal(numbers(output), [1.0] * 18 + [36.0])


# Promise (deeprec.md): the manual's first program runs by its command on two workers, prints what it should, and takes
# the step of plain TensorFlow.
def test_the_step_is_that_of_one_process(tmp_path):
    program = tmp_path / "program.py"
    text = (HERE / "deeprec_manual_session.py").read_text()
    program.write_text(text + "        print('after', sess.run(var)[:9].tolist())\n")
    expected = after_one_step_of_plain_tensorflow()
    assert len(np.unique(expected[IDS])) == 1 and expected[0, 0] != 1, "a step that changes nothing proves nothing"
    for output in launch(program, "sok"):
        after = numbers(output.partition("after")[2]).reshape(9, 3)
        np.testing.assert_allclose(after, expected[:9], rtol=1e-6)


def trained_by_numpy(initial: float, rate: float, steps: int) -> tuple[float, list[np.ndarray]]:
    """Returns the loss of an evaluation after some steps, and the tables; both workers read the same rows."""
    folder = movielens()
    columns = movielens_stand_in.read(folder) if folder else movielens_stand_in.make()
    users, movies, ratings = (column[:RATINGS] for column in columns)
    tables = [np.full([ids.max() + 1, 16], initial) for ids in (movies, users)]
    squares = [np.full_like(table, 0.1) for table in tables]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)  # the seed of TensorFlow's RunConfig, which is half of the shuffle's seed
        rows = tf.data.Dataset.range(len(users)).shuffle(1_000_000, seed=2021, reshuffle_each_iteration=False)
        batch = tf.data.make_one_shot_iterator(rows.batch(256)).get_next()
        batches = [session.run(batch) for _ in range(-(-len(users) // 256))]

    def outcome(taken):
        label = (ratings[taken] > 3)[:, np.newaxis]
        p = 2 * np.concatenate([tables[0][movies[taken]], tables[1][users[taken]]], 1)
        clipped = np.clip(p, 1e-7, 1 - 1e-7)
        loss = np.mean(-np.where(label, np.log(clipped), np.log(1 - clipped)))
        return loss, np.where(label, -1 / clipped, 1 / (1 - clipped)) * (p == clipped) * 2 / p.size

    for taken in batches[:steps]:
        parts = np.split(outcome(taken)[1], 2, axis=1)
        for table, square, ids, part in zip(tables, squares, (movies, users), parts, strict=True):
            gradient = np.zeros_like(table)
            np.add.at(gradient, ids[taken], part)
            square += gradient**2
            table -= rate * gradient / np.sqrt(square)
    return float(np.mean([outcome(taken)[0] for taken in batches[:100]])), tables


@pytest.fixture
def program(tmp_path) -> Path:
    """Returns the second program, in a folder with the stand-in for its data."""
    shutil.copy(HERE / "movielens_stand_in.py", tmp_path / "tensorflow_datasets.py")
    shutil.copy(HERE / "deeprec_manual_estimator.py", tmp_path / "program.py")
    return tmp_path / "program.py"


def served(folder: Path, movies: np.ndarray, users: np.ndarray) -> np.ndarray:
    """Returns the results of stock TensorFlow with the program's export."""
    (exported,) = (path for path in folder.iterdir() if path.name.isdigit())
    serve = tf2.saved_model.load(str(exported)).signatures["serving_default"]
    ids = {"movie_id": tf2.constant(movies), "user_id": tf2.constant(users)}
    return serve(**ids, user_rating=tf2.zeros(len(movies)))["logits"].numpy()


def evaluated(folder: Path) -> dict[str, float]:
    """Returns the values in the summaries of the program's evaluation."""
    (events,) = (folder / "eval").glob("events.*")
    found = [value for event in tf.train.summary_iterator(str(events)) for value in event.summary.value]
    return {value.tag: value.simple_value or float(tf2.make_ndarray(value.tensor)) for value in found}


# Promise (deeprec.md): the manual's second program trains 50 steps, evaluates and exports, by its command on two
# workers.
def test_the_estimator_trains_evaluates_and_exports(program):
    launch(program, "hb")
    checkpoint = tf2.train.latest_checkpoint(str(program.parent))
    assert tf2.train.load_variable(checkpoint, "global_step") == 50
    assert evaluated(program.parent).keys() == {"loss", "global_step"}
    # Rows begin below 0.001; an id that was never seen has none.
    rows = served(program.parent, np.array([50, 10**12]), np.array([405, -7]))
    assert np.all(np.abs(rows[0]).reshape(2, 16).max(1) > 2e-3) and not rows[1].any()


# Promise (deeprec.md): the manual's second program evaluates and exports with `sok` what numpy computes.
def test_the_estimator_trains_what_numpy_does(program):
    # The tables begin as numpy's, with a constant. It makes the output a probability.
    initial = "tf.random_uniform_initializer(-1e-3, 1e-3)"
    text = program.read_text().replace(initial, "tf.constant_initializer(0.2)")
    program.write_text(text.replace("lr=0.05", "lr=2.0"))  # this rate has an effect within a few steps
    launch(program, "sok")
    loss, (movies, users) = trained_by_numpy(initial=0.2, rate=2.0, steps=50)
    untrained, _ = trained_by_numpy(initial=0.2, rate=2.0, steps=0)
    assert untrained > loss + 0.01, "steps that change nothing prove nothing"
    np.testing.assert_allclose(evaluated(program.parent)["loss"], loss, rtol=1e-5)
    ids = np.arange(1, min(len(movies), len(users)))
    expected = 2 * np.concatenate([movies[ids], users[ids]], axis=1)
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(served(program.parent, ids, ids), expected, rtol=5e-5)
