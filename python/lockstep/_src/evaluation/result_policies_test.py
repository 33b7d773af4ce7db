"""Policies for the results of evaluations, on one worker.

For several workers see tests/multiprocess/sessions/stopping_worker.py.
"""

import json

import pytest
import tensorflow as tf

from lockstep._src.evaluation.evaluation_hook import EvaluationHook
from lockstep._src.evaluation.result_policies import BestCheckpoint, EarlyStopping
from lockstep._src.scope import scope

tf1 = tf.compat.v1


def by_step(*values):
    """Returns an `fn` whose result 'score' at global step 1, 2, ... is the first, second, ... of `values`."""

    def fn():
        step = tf1.train.get_global_step()
        return {"score": (tf.constant(values, tf.float32)[tf.cast(step, tf.int32) - 1], tf.no_op())}

    return fn


def evaluate_each_step(values, policies):
    """Trains until a policy stops it or the values end. Returns the number of steps."""
    hook = EvaluationHook(by_step(*values), steps=1, every_n_iter=1, policies=policies)
    with tf.Graph().as_default(), scope():
        train_op = tf1.train.get_or_create_global_step().assign_add(1)
        weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer(), use_resource=True)
        with tf.control_dependencies([train_op]):
            train_op = weight.assign_add(1.0)
        taken = 0
        with tf1.train.MonitoredTrainingSession("", hooks=[hook]) as session:
            while taken < len(values) and not session.should_stop():
                session.run(train_op)
                taken += 1
        return taken


@pytest.mark.parametrize(
    ("values", "arguments", "steps"),
    [
        ([1, 2, 3, 2, 4], {}, 4),
        ([1, 2, 2, 2, 3], {"patience": 2}, 4),
        ([3, 2, 1, 2, 0], {"mode": "min"}, 4),
        ([1, 1.1, 1.3, 1.4, 1.4, 5], {"min_delta": 0.15, "patience": 2}, 5),
        ([1, float("nan"), 2], {}, 2),
        ([1, 2, 3], {}, 3),
    ],
)
def test_early_stopping_ends_training_when_a_result_no_longer_gets_better(values, arguments, steps):
    policy = EarlyStopping("score", **arguments)
    assert evaluate_each_step(values, [policy]) == steps
    # A second session starts without the first session's results.
    assert evaluate_each_step(values, [policy]) == steps


def weight_in(directory):
    path = tf1.train.latest_checkpoint(str(directory))
    return tf1.train.load_checkpoint(path).get_tensor("weight")


def test_best_checkpoint_is_kept_also_when_training_starts_again(tmp_path):
    directory = tmp_path / "best"
    evaluate_each_step([1, 3, 2], [BestCheckpoint("score", directory)])
    assert weight_in(directory) == 2
    best = json.loads((directory / "best.json").read_text())
    assert best.pop("crc32")
    assert best == {"metric": "score", "value": 3.0, "global_step": 2, "checkpoint": "best-2"}
    evaluate_each_step([1, 2, 2.5], [BestCheckpoint("score", directory)])
    assert weight_in(directory) == 2
    evaluate_each_step([4, 2, 2], [BestCheckpoint("score", directory)])
    assert weight_in(directory) == 1
    assert {path.stem for path in directory.glob("best-*")} == {"best-1"}  # older ones are deleted
    with pytest.raises(ValueError, match="is of the metric 'score', wanted 'loss'"):
        evaluate_each_step([1], [BestCheckpoint("loss", directory)])


@pytest.mark.parametrize(("mode", "weight"), [("max", 2), ("min", 3)])
def test_best_is_by_the_mode_and_never_nan(mode, weight, tmp_path):
    evaluate_each_step([float("nan"), 3, 1, 2], [BestCheckpoint("score", tmp_path / "best", mode)])
    assert weight_in(tmp_path / "best") == weight


def test_as_many_best_checkpoints_are_kept_as_are_asked_for(tmp_path):
    evaluate_each_step([1, 2, 2.5, 4], [BestCheckpoint("score", tmp_path / "best", min_delta=0.5, max_to_keep=2)])
    assert {path.stem for path in (tmp_path / "best").glob("best-*")} == {"best-2", "best-4"}


@pytest.mark.parametrize(
    "damage",
    [lambda text: text.replace("4.0", "5.0"), lambda text: text[:-3], lambda text: ""],
    ids=["value", "end", "empty"],
)
def test_a_damaged_file_of_the_best_result_is_named(damage, tmp_path):
    directory = tmp_path / "best"
    evaluate_each_step([4], [BestCheckpoint("score", directory)])
    written = (directory / "best.json").read_text()
    assert damage(written) != written
    (directory / "best.json").write_text(damage(written))
    with pytest.raises(ValueError, match=r"BestCheckpoint: .*/best/best\.json is damaged"):
        evaluate_each_step([1], [BestCheckpoint("score", directory)])


def best_checkpoint_in_a_folder(*arguments, **options):
    return BestCheckpoint(*arguments, directory="unused", **options)


@pytest.mark.parametrize("policy", [EarlyStopping, best_checkpoint_in_a_folder])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "up"}, "mode is 'up', wanted 'max' or 'min'"),
        ({"min_delta": -1}, "min_delta is -1, wanted 0 or more"),
        ({"min_delta": float("nan")}, "min_delta is nan, wanted 0 or more"),
    ],
    ids=str,
)
def test_bad_arguments_of_policies_are_refused(policy, arguments, message):
    with pytest.raises(ValueError, match=f"(EarlyStopping|BestCheckpoint): {message}"):
        policy("score", **arguments)


@pytest.mark.parametrize("policy", [EarlyStopping, BestCheckpoint])
def test_an_evaluation_without_the_result_is_an_error(policy, tmp_path):
    where = (tmp_path,) if policy is BestCheckpoint else ()
    with pytest.raises(ValueError, match="no result 'auc', but global_step, score"):
        evaluate_each_step([1], [policy("auc", *where)])


def test_patience_is_at_least_one():
    with pytest.raises(ValueError, match="patience is 0"):
        EarlyStopping("score", patience=0)
