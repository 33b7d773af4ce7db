"""Passes over data, their losses and metrics, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.keras.models import passes
from lockstep._src.keras.models.passes import Loss, Pass

tf1 = tf.compat.v1

LABELS = np.array([[0.0], [1.0], [1.0], [0.0], [1.0]], np.float32)
OUTPUTS = np.array([[0.2], [0.7], [0.4], [0.9], [0.6]], np.float32)


def squared(labels, outputs):
    return tf.math.squared_difference(labels, outputs)


def halved(labels, outputs):
    return tf.reduce_mean(squared(labels, outputs)) / 2


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        (squared, "squared", np.mean((LABELS - OUTPUTS) ** 2)),
        (halved, "halved", np.mean((LABELS - OUTPUTS) ** 2) / 2),
        ("mse", "mse", np.mean((LABELS - OUTPUTS) ** 2)),
        ("mean_absolute_error", "mean_absolute_error", np.mean(np.abs(LABELS - OUTPUTS))),
        (lambda labels, outputs: 2.0, "<lambda>", 2.0),
    ],
    ids=["of each element", "a scalar", "of Keras", "long name of Keras", "a number"],
)
def test_a_loss_is_the_mean_over_a_batch(function, name, expected):
    with tf.Graph().as_default(), tf1.Session() as session:
        loss = Loss(function)
        value = loss(tf.constant(LABELS), tf.constant(OUTPUTS))
        assert loss.name == name and value.shape == []
        np.testing.assert_allclose(session.run(value), expected, rtol=1e-6)


def _dataset(outputs, labels, batches):
    ends = np.cumsum(batches)
    return tf.data.Dataset.from_generator(
        lambda: ((outputs[end - n : end], labels[end - n : end]) for end, n in zip(ends, batches, strict=True)),
        output_signature=tuple(tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in (outputs, labels)),
    )


def _measured(metrics, labels=LABELS, outputs=OUTPUTS, batches=(3, 2), loss=squared):
    """Returns the results of two passes over the rows, in batches of these sizes."""
    with tf.Graph().as_default(), tf1.Session() as session:
        iterator = tf1.data.make_initializable_iterator(_dataset(outputs, labels, batches))
        scores, truth = iterator.get_next()
        one = Pass(iterator.initializer, passes.measured(scores, truth, scores, Loss(loss), metrics))
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        return [one.run(session) for _ in range(2)]


@pytest.mark.parametrize("batches", [(5,), (3, 2), (1, 0, 4)], ids=str)
def test_the_loss_and_each_metric_weigh_batches_by_their_rows(batches):
    both = _measured([halved, "mae"], batches=batches)
    squares = np.mean((LABELS - OUTPUTS) ** 2)
    expected = {"loss": squares, "halved": squares / 2, "mae": np.mean(np.abs(LABELS - OUTPUTS))}
    for values in both:
        assert values == pytest.approx(expected, rel=1e-6)


ONE_HOT, OF_CLASSES = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]], np.float32(np.random.RandomState(3).rand(5, 3))
CLASSES = ONE_HOT.argmax(1)


@pytest.mark.parametrize(
    ("labels", "outputs", "right"),
    [
        (LABELS, OUTPUTS, (LABELS > 0.5) == (OUTPUTS > 0.5)),
        (LABELS[:, 0], OUTPUTS[:, 0], (LABELS > 0.5) == (OUTPUTS > 0.5)),
        (LABELS[:, 0].astype(np.int64), OUTPUTS, (LABELS > 0.5) == (OUTPUTS > 0.5)),
        (ONE_HOT, OF_CLASSES, OF_CLASSES.argmax(1) == CLASSES),
        (CLASSES, OF_CLASSES, OF_CLASSES.argmax(1) == CLASSES),
        (CLASSES[:, np.newaxis], OF_CLASSES, OF_CLASSES.argmax(1) == CLASSES),
    ],
    ids=["a column", "a vector", "labels of another shape", "one-hot", "classes", "a column of classes"],
)
def test_the_accuracy_compares_classes_by_the_shapes(labels, outputs, right):
    names = ["acc", "accuracy", "binary_accuracy"]
    first, second = _measured(names, labels, outputs, loss=lambda labels, outputs: 0.0)
    assert [first[name] for name in names] == pytest.approx([np.mean(right)] * 3)
    assert first == second


def test_the_auc_is_the_share_of_pairs_in_order():
    positive, negative = OUTPUTS[LABELS == 1], OUTPUTS[LABELS == 0]
    share = np.mean(positive[:, np.newaxis] > negative[np.newaxis])
    assert [values["AUC".lower()] for values in _measured(["AUC"])] == pytest.approx([share] * 2, abs=1e-3)


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        (["mse", "mse"], ValueError, "^compile: two metrics are named 'mse', wanted different names$"),
        ([3], TypeError, "^compile: 3 is not a metric for graphs of TensorFlow 1; wanted a name, a function or a"),
    ],
    ids=["the same name", "a number"],
)
def test_wrong_metrics_are_refused(metrics, error, message):
    with pytest.raises(error, match=message):
        _measured(metrics)


def _steps(step_count, runs):
    """Returns the batches that each run takes; `runs` are arguments of `Pass.batches`, and each batch is a number."""
    with tf.Graph().as_default(), tf1.Session() as session:
        iterator = tf1.data.make_initializable_iterator(_dataset(OUTPUTS, np.arange(5.0), (1,) * 5))
        one = Pass(iterator.initializer, None, step_count, along={"labels": iterator.get_next()[1]})
        return [[int(r["labels"][0]) for r in one.batches(session, **arguments)] for arguments in runs]


@pytest.mark.parametrize(
    ("step_count", "runs", "expected"),
    [
        (None, [{}, {}], [[0, 1, 2, 3, 4]] * 2),
        (2, [{}, {}], [[0, 1]] * 2),
        (2, [{}, {"restart": False}], [[0, 1], [2, 3]]),
        (2, [{"steps": 4}, {"steps": 4, "restart": False}, {"restart": False}], [[0, 1, 2, 3], [4], []]),
        (9, [{}], [[0, 1, 2, 3, 4]]),
    ],
    ids=["until the end", "limited", "continued", "limited by the call", "more than there are"],
)
def test_a_pass_takes_its_steps_until_the_data_ends(step_count, runs, expected):
    assert _steps(step_count, runs) == expected


def test_a_pass_without_data_has_no_values_and_each_step_is_told():
    with tf.Graph().as_default(), tf1.Session() as session:
        iterator = tf1.data.make_initializable_iterator(_dataset(OUTPUTS, LABELS, (3, 2)))
        scores, labels = iterator.get_next()
        one = Pass(
            iterator.initializer, passes.measured(scores, labels, scores, Loss(squared), []), along={"y": labels}
        )
        session.run(tf1.local_variables_initializer())
        told = []
        values = one.run(session, on_batch=lambda number, results: told.append((number, len(results["y"]))))
        assert told == [(0, 3), (1, 2)] and values.keys() == {"loss"}
        assert one.run(session, restart=False) is None


def test_data_like_the_inputs_is_fed_in_place_of_the_inputs():
    with tf.Graph().as_default(), tf1.Session() as session:
        inputs = tf.constant([1.0, 2.0])
        outputs = inputs * 10
        iterator = tf1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors([5.0, 6.0]))
        feed = passes.feeding(inputs, outputs, iterator.get_next())
        np.testing.assert_array_equal(session.run(outputs, feed(session)), [50.0, 60.0])


@pytest.mark.parametrize(
    "other",
    [lambda: (tf.constant([1.0]), tf.constant([2.0])), lambda: tf.constant([1]), lambda: tf.constant([[1.0]])],
    ids=["two parts", "type", "shape"],
)
def test_data_of_another_structure_is_refused(other):
    with tf.Graph().as_default():
        inputs = tf1.placeholder(tf.float32, [None])
        with pytest.raises(ValueError, match="^the dataset has batches of .*, the model was built on .*same structure"):
            passes.feeding(inputs, inputs * 2, other())
