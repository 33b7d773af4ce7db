"""Evaluation on one worker. Several workers: tests/multiprocess/evaluation/evaluation_test.py."""

import contextlib
import glob
import logging

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.evaluation import metrics
from lockstep._src.evaluation.evaluation_hook import EvaluationHook, EvaluationSpec
from lockstep._src.scope import embedding_scope, scope

tf1 = tf.compat.v1


def batches(*values):
    """Returns a dataset of batches of one label each."""
    return tf1.data.Dataset.from_tensor_slices(np.array(values, np.float32)).batch(1)


def share_of_ones(dataset, make_iterator="make_one_shot_iterator"):
    """Returns an `fn` that computes the fraction of 1 in the evaluated data."""

    def fn():
        labels = getattr(tf1.data, make_iterator)(dataset()).get_next()
        return {"ones": metrics.accuracy(labels, tf.ones_like(labels))}

    return fn


def train(hooks, runs, with_step=True, build=lambda: None):
    """Trains for `runs` runs, each of which adds 1 to a weight; returns the rows of training data that were taken."""
    with tf.Graph().as_default(), scope():
        build()
        element = tf1.data.make_one_shot_iterator(tf1.data.Dataset.range(1000)).get_next()
        weight = tf1.get_variable("weight", [], initializer=tf1.zeros_initializer(), use_resource=True)
        step = tf1.train.get_or_create_global_step() if with_step else tf.Variable(0, name="no_step")
        with tf.control_dependencies([element]):
            train_op = tf.group(weight.assign_add(1.0), step.assign_add(1) if with_step else tf.no_op())
        taken = []
        with tf1.train.MonitoredTrainingSession("", hooks=hooks) as session:
            for _ in range(runs):
                row, _ = session.run([element, train_op])
                taken.append(int(row))
        return taken


def ones(history):
    return [round(float(record["ones"]), 6) for record in history]


# Promise (hybridbackend.md): each starts at zero, after every n-th run (HybridBackend, a wrong result: metrics add up
# over evaluations, and the first evaluation follows step 1).
def test_evaluates_after_every_n_runs_and_not_before():
    history = []
    taken = train([EvaluationHook(share_of_ones(lambda: batches(1, 0)), every_n_iter=3, history=history)], 7)
    assert [record["global_step"] for record in history] == [3, 6]
    assert taken == list(range(7))  # the evaluation took none


def test_runs_count_where_there_is_no_global_step():
    history = []
    hook = EvaluationHook(share_of_ones(lambda: batches(1)), every_n_iter=2, history=history)
    train([hook], 5, with_step=False)
    assert [record["global_step"] for record in history] == [2, 4]


@pytest.mark.parametrize(("at_end", "runs", "steps"), [(False, 3, [2]), (True, 3, [2, 3]), (True, 4, [2, 4])])
def test_end_of_training_evaluates_only_where_asked_and_needed(at_end, runs, steps):
    history = []
    hook = EvaluationHook(share_of_ones(lambda: batches(1)), every_n_iter=2, history=history, at_end=at_end)
    train([hook], runs)
    assert [record["global_step"] for record in history] == steps


# Promise (hybridbackend.md): each starts at zero, after every n-th run (HybridBackend, a wrong result: metrics add up
# over evaluations, and the first evaluation follows step 1).
@pytest.mark.parametrize("make_iterator", ["make_one_shot_iterator", "make_initializable_iterator"])
def test_every_evaluation_starts_at_the_beginning(make_iterator):
    history = []
    fn = share_of_ones(lambda: batches(1, 0, 0, 0, 1, 1, 1, 1), make_iterator)
    train([EvaluationHook(fn, steps=4, every_n_iter=1, history=history)], 3)
    assert ones(history) == [0.25, 0.25, 0.25]


def test_iterator_of_a_structure_restarts_with_its_dataset():
    def fn():
        dataset = batches(1, 0, 0)
        iterator = tf1.data.Iterator.from_structure(
            tf1.data.get_output_types(dataset), tf1.data.get_output_shapes(dataset)
        )
        iterator.make_initializer(dataset)
        labels = iterator.get_next()
        return {"ones": metrics.accuracy(labels, tf.ones_like(labels))}

    history = []
    train([EvaluationHook(fn, steps=2, every_n_iter=1, history=history)], 3)
    assert ones(history) == [0.5, 0.5, 0.5]


def test_second_dataset_of_a_structure_is_refused():
    def fn():
        iterator = tf1.data.Iterator.from_structure(tf.float32, [None])
        iterator.make_initializer(batches(1))
        iterator.make_initializer(batches(0))

    with tf.Graph().as_default(), pytest.raises(ValueError, match="second dataset"):
        EvaluationHook(fn).begin()


@pytest.mark.parametrize("steps", [100, None])
def test_the_end_of_the_data_ends_only_the_evaluation(steps):
    history = []
    fn = share_of_ones(lambda: batches(1, 0, 0, 0, 1))
    taken = train([EvaluationHook(fn, steps=steps, every_n_iter=2, history=history)], 6)
    assert ones(history) == [0.4, 0.4, 0.4]
    assert taken == list(range(6))


def test_endless_data_is_limited_by_steps():
    history = []
    fn = share_of_ones(lambda: batches(1, 0, 0).repeat())
    train([EvaluationHook(fn, steps=4, every_n_iter=3, history=history)], 3)
    assert ones(history) == [0.5]


def test_method_of_a_dataset_makes_a_restartable_iterator_as_well():
    def fn():
        labels = batches(1, 0).make_one_shot_iterator().get_next()
        return {"ones": metrics.accuracy(labels, tf.ones_like(labels))}

    history = []
    train([EvaluationHook(fn, every_n_iter=1, history=history)], 3)
    assert ones(history) == [0.5, 0.5, 0.5]


def test_model_is_built_once_for_evaluation_on_trainings_variables():
    seen = []

    def fn():
        weight = tf1.get_variable("weight", [])
        seen.append((context.options.mode, weight.op.name, len(tf1.trainable_variables())))
        return {"weight": (weight, tf.no_op("nothing")), "double": (2 * weight, tf.no_op())}

    history = []
    train([EvaluationHook(fn, steps=1, every_n_iter=2, history=history)], 4)
    assert seen == [("eval", "weight", 1)]
    assert [(float(r["weight"]), float(r["double"])) for r in history] == [(2, 4), (4, 8)]
    assert context.options.mode == "train"


def default_named_model(table_scope):
    """Computes scores of two rows. TensorFlow names the scopes of the variables: two layers, tables of two columns."""
    with tf1.variable_scope(None, "layer"):
        first = tf1.get_variable("weight", [], initializer=tf1.constant_initializer(3.0))
    with tf1.variable_scope(None, "layer"):
        second = tf1.get_variable("weight", [], initializer=tf1.constant_initializer(5.0))
    columns = [
        tf1.feature_column.embedding_column(
            tf1.feature_column.categorical_column_with_identity(name, 10), 1, initializer=tf1.constant_initializer(7.0)
        )
        for name in ("user", "item")
    ]
    rows = []
    for column in columns:
        with table_scope():
            rows.append(
                tf1.feature_column.input_layer({column.categorical_column.key: tf.constant([[1], [2]])}, column)
            )
    return first * 10.0 + second + tf.add_n(rows)


@pytest.mark.pairwise
@pytest.mark.parametrize("outer", [{}, {"sharding": True}], ids=["plain", "sharding"])
@pytest.mark.parametrize("table_scope", [contextlib.nullcontext, embedding_scope], ids=["as outside", "scope a call"])
@pytest.mark.parametrize("within", ["", "tower"])
def test_model_function_finds_its_variables_whose_names_are_tensorflows(outer, table_scope, within):
    def model():
        with tf1.variable_scope(within) if within else contextlib.nullcontext():
            return default_named_model(table_scope)

    def fn():
        return {"score": (tf.reduce_sum(model()), tf.no_op())}

    history = []
    with tf.Graph().as_default(), scope(**outer):
        loss = tf.reduce_mean(model())
        trained = {v.op.name: v for v in tf1.trainable_variables()}
        train_op = tf1.train.GradientDescentOptimizer(1.0).minimize(loss, tf1.train.get_or_create_global_step())
        hooks = [EvaluationHook(fn, steps=1, every_n_iter=1, history=history) for _ in range(2)]
        with tf1.train.MonitoredTrainingSession("", hooks=hooks) as session:
            session.run(train_op)
        assert {v.op.name for v in tf1.trainable_variables()} == set(trained) and len(trained) == 4
        # Names that are given after the session continue the numbers of the training model.
        with tf1.variable_scope(None, "layer") as opened:
            assert opened.name == ("layer" if within else "layer_2")
    # Gradients of the mean: 10, 1, and 1/2 for each of the two rows of both tables.
    score = 2 * (10 * (3.0 - 10) + (5.0 - 1)) + 4 * (7.0 - 0.5)
    assert [float(record["score"]) for record in history] == [score, score]


def test_new_variables_are_refused_by_name():
    def fn():
        other = tf1.get_variable("wieght", [])
        return {"weight": (other, tf.no_op())}

    with pytest.raises(ValueError, match="wieght.*not in the training graph"):
        train([EvaluationHook(fn)], 1)


def test_only_the_evaluations_own_metrics_are_reset():
    def of_training():
        _, update = metrics.accuracy(tf.ones([1]), tf.ones([1]), name="training")
        return update, next(v for v in tf1.local_variables() if v.op.name == "training/count")

    history, counts = [], []

    class Update(tf1.train.SessionRunHook):
        def begin(self):
            self.update, self.count = tf1.get_collection("of_training")

        def before_run(self, run_context):
            return tf1.train.SessionRunArgs(self.update)

        def after_run(self, run_context, run_values):
            counts.append(run_context.session.run(self.count))

    hooks = [EvaluationHook(share_of_ones(lambda: batches(1)), every_n_iter=1, history=history), Update()]
    train(hooks, 3, build=lambda: [tf1.add_to_collection("of_training", x) for x in of_training()])
    assert counts == [1, 2, 3]


def test_tensorflows_own_metrics_are_reset_too():
    def fn():
        labels = tf1.data.make_one_shot_iterator(batches(0.25, 0.75)).get_next()
        return {"mean": tf1.metrics.mean(labels)}

    history = []
    train([EvaluationHook(fn, every_n_iter=1, history=history)], 2)
    assert [float(record["mean"]) for record in history] == [0.5, 0.5]


def test_value_computed_from_a_batch_takes_no_batch_of_its_own():
    def fn():
        labels = tf1.data.make_one_shot_iterator(batches(1, 2, 3, 4)).get_next()
        return {"loss": (tf.reduce_sum(labels), tf.no_op()), "mean": tf1.metrics.mean(labels)}

    history = []
    train([EvaluationHook(fn, steps=3, every_n_iter=1, history=history)], 1)
    assert (float(history[0]["loss"]), float(history[0]["mean"])) == (3, 2)


def test_summaries_of_the_evaluated_model_stay_out_of_trainings():
    collections = (tf1.GraphKeys.SUMMARIES, tf1.GraphKeys.LOSSES, tf1.GraphKeys.UPDATE_OPS)

    def fn():
        value = tf.constant(1.0)
        tf1.summary.scalar("evaluated", value)
        tf1.losses.add_loss(value)
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, value.op)
        return {"value": (value, tf.no_op())}

    with tf.Graph().as_default():
        tf1.summary.scalar("trained", tf.constant(2.0))
        EvaluationHook(fn).begin()
        assert [[x.op.name for x in tf1.get_collection(key)] for key in collections] == [["trained"], [], []]


# Promise (hybridbackend.md): nothing is written without a folder (HybridBackend: summaries go into a folder named
# `None`).
def test_chief_writes_summaries_only_with_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fn = share_of_ones(lambda: batches(1, 0))
    train([EvaluationHook(fn, every_n_iter=2)], 2)
    assert not list(tmp_path.iterdir())
    train([EvaluationHook(fn, every_n_iter=2, summary_dir=str(tmp_path / "eval"))], 4)
    (file,) = glob.glob(str(tmp_path / "eval" / "*"))
    events = [
        (event.step, value.tag, value.simple_value)
        for event in tf1.train.summary_iterator(file)
        for value in event.summary.value
    ]
    assert events == [(2, "ones", 0.5), (4, "ones", 0.5)]


def test_evaluation_is_logged(caplog):
    with caplog.at_level(logging.INFO, "lockstep"):
        train([EvaluationHook(share_of_ones(lambda: batches(1, 0)), every_n_iter=2)], 2)
    assert "evaluation at step 2, 2 batches a worker: ones = 0.5" in caplog.text


def test_data_without_a_batch_is_an_error_and_not_the_end_of_training():
    with pytest.raises(RuntimeError, match="no batch on any worker"):
        train([EvaluationHook(share_of_ones(batches), every_n_iter=1)], 1)


def test_iterator_from_outside_is_an_error_once_it_is_used_up():
    def hook():
        labels = tf1.data.make_one_shot_iterator(batches(1, 0)).get_next()
        return EvaluationHook(lambda: {"ones": metrics.accuracy(labels, tf.ones_like(labels))}, every_n_iter=1)

    hooks = []
    with pytest.raises(RuntimeError, match="outside of fn"):
        train(hooks, 3, build=lambda: hooks.append(hook()))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None"),
        ({}, "empty dict"),
        ({"a": 1.0}, "'a': 1.0"),
        ({3: (1.0, None)}, "3: "),
    ],
)
def test_wrong_result_of_fn_is_refused(returned, message):
    with tf.Graph().as_default(), pytest.raises(TypeError, match=message):
        EvaluationHook(lambda: returned).begin()


@pytest.mark.parametrize("arguments", [{"steps": 0}, {"every_n_iter": 0}, {"every_n_iter": None}])
def test_wrong_numbers_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        EvaluationHook(lambda: {}, **arguments)


def test_all_of_the_data_needs_data_that_ends():
    hook = EvaluationHook(lambda: {"one": (tf.constant(1.0), tf.no_op())}, steps=None)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="steps is None"):
        hook.begin()


def test_iterators_are_put_back():
    before = [tf1.data.make_one_shot_iterator, tf1.data.Dataset.make_initializable_iterator]
    with tf.Graph().as_default(), pytest.raises(KeyError):
        EvaluationHook(lambda: {}["no such"]).begin()
    assert [tf1.data.make_one_shot_iterator, tf1.data.Dataset.make_initializable_iterator] == before


class Counter(tf1.train.SessionRunHook):
    """A hook that counts its runs, and requests a stop after a given number."""

    def __init__(self, stop_after=None):
        self.calls, self.stop_after = [], stop_after

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("created")

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs("eval/batch:0")

    def after_run(self, run_context, run_values):
        self.calls.append(float(run_values.results[0]))
        if self.calls[-1] == self.stop_after:
            run_context.request_stop()

    def end(self, session):
        self.calls.append("end")


def test_hooks_of_a_spec_run_only_in_the_evaluation():
    hook, history = Counter(stop_after=2), []

    def fn():
        batch = tf.identity(tf1.data.make_one_shot_iterator(batches(1, 2, 3, 4)).get_next(), name="batch")
        value, update = tf1.metrics.mean(batch)
        return EvaluationSpec(name="spec", hooks=[hook], update_op=update, eval_dict={"mean": value})

    taken = train([EvaluationHook(fn, every_n_iter=2, history=history)], 5)
    assert hook.calls == ["begin", "created", 1, 2, 1, 2, "end"]
    # The hook ended each evaluation after two batches, but did not end training.
    assert [float(record["mean"]) for record in history] == [1.5, 1.5] and len(taken) == 5


def test_evaluation_does_not_move_trainings_averages():
    def model():
        average = tf1.train.ExponentialMovingAverage(0.5)
        averaged = tf1.get_variable("averaged", [], initializer=tf1.ones_initializer(), use_resource=True)
        # The new value differs from the variable's value, so that any update would be visible.
        with tf.control_dependencies([averaged.assign(5.0)]), tf.control_dependencies([average.apply([averaged])]):
            return tf.identity(average.average(averaged))

    history = []
    hook = EvaluationHook(lambda: {"average": (model(), tf.no_op())}, steps=3, every_n_iter=1, history=history)
    train([hook], 3, build=model)
    assert [float(record["average"]) for record in history] == [1, 1, 1]


def test_arrays_and_serialized_summaries_are_written_too(tmp_path):
    def fn():
        serialized = tf1.summary.histogram("values", [1.0, 2.0])
        values = {"array": tf.constant([1.0, 2.0]), "histogram": serialized, "text": tf.constant(["a"])}
        return {name: (value, tf.no_op()) for name, value in values.items()}

    train([EvaluationHook(fn, steps=1, every_n_iter=1, summary_dir=str(tmp_path))], 1)
    (file,) = glob.glob(f"{tmp_path}/*")
    values = {v.tag: v for event in tf1.train.summary_iterator(file) for v in event.summary.value}
    assert sorted(values) == ["array", "histogram/0"]
    np.testing.assert_array_equal(tf.make_ndarray(values["array"].tensor), [1, 2])
    assert values["histogram/0"].histo.num == 2


@pytest.mark.parametrize("saveable", [False, True])
def test_saveables_of_the_evaluated_model_stay_out_of_checkpoints(saveable):
    with tf.Graph().as_default():
        before = tf1.get_collection(tf1.GraphKeys.SAVEABLE_OBJECTS)
        tf1.train.get_or_create_global_step()

        def fn():
            tf1.add_to_collection(tf1.GraphKeys.SAVEABLE_OBJECTS, object())
            return {"one": (tf.constant(1.0), tf.no_op())}

        EvaluationHook(fn).begin()
        assert tf1.get_collection(tf1.GraphKeys.SAVEABLE_OBJECTS) == before
