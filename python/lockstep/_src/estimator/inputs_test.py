"""Input functions return the same as NumPy and, if TensorFlow has it (2.15), as `tf.estimator`."""

# Promise of this file (horovod.md): a program for `tf.estimator` trains on two ranks what numpy does.
# Promise of this file (horovod_training.md): an estimator of two ranks trains what numpy does.

import collections

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep.estimator.inputs import numpy_input_fn, pandas_input_fn

_tf1 = tf.compat.v1
ROWS = 10
X = {
    "name": np.array([f"n{i}" for i in range(ROWS)], object),
    "id": np.arange(ROWS, dtype=np.int64),
    "dense": np.random.RandomState(1).rand(ROWS, 2, 3).astype(np.float32),
}
Y = np.arange(ROWS, dtype=np.float64) * 2


class Frame:
    """A stand-in for `pandas.DataFrame`, with the parts that input functions use."""

    def __init__(self, columns, index=None):
        self._columns = columns
        self.columns = list(columns)
        self.index = np.arange(ROWS) if index is None else index

    def __contains__(self, name):
        return name in self._columns

    def __getitem__(self, name):
        return self._columns[name]


class Series(np.ndarray):
    """A stand-in for `pandas.Series`."""

    index = np.arange(ROWS)


def _batches(input_fn, most=100):
    """Returns the batches as nested arrays, and the static shapes of their tensors."""
    with tf.Graph().as_default():
        taken = input_fn()
        shapes = [tensor.shape.as_list() for tensor in tf.nest.flatten(taken)]
        batches = []
        with _tf1.train.MonitoredSession() as session:
            while len(batches) < most and not session.should_stop():
                try:
                    batches.append(session.run(taken))
                except tf.errors.OutOfRangeError:
                    break
    return batches, shapes


# This project's function, and TensorFlow's if there is one.
IMPLEMENTATIONS = {"own": numpy_input_fn}
if hasattr(_tf1, "estimator"):
    IMPLEMENTATIONS["TensorFlow's"] = _tf1.estimator.inputs.numpy_input_fn
each_implementation = pytest.mark.parametrize("make", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)


def _assert_equal(got, wanted):
    tf.nest.assert_same_structure(got, wanted)
    for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True):
        np.testing.assert_array_equal(one, other.astype("S") if other.dtype == object else other)


@each_implementation
@pytest.mark.parametrize("epochs", [1, 3, None])
@pytest.mark.parametrize("y", [None, Y, {"b": Y, "a": Y[:, None]}], ids=["none", "array", "dict"])
@pytest.mark.parametrize("x", [X["dense"], X], ids=["array", "dict"])
def test_batches_are_rows_in_their_order(x, y, epochs, make):
    given = x if y is None else (x, y)
    order = np.tile(np.arange(ROWS), epochs or 3)
    end = len(order) if epochs else 24
    wanted = [tf.nest.map_structure(lambda a, i=i: a[order[i : i + 4]], given) for i in range(0, end, 4)]
    input_fn = make(x, y, batch_size=4, num_epochs=epochs, shuffle=False)
    batches, shapes = _batches(input_fn, len(wanted) + (epochs or 0))  # one more, to see the end
    assert len(batches) == len(wanted)
    for got, expected in zip(batches, wanted, strict=True):
        _assert_equal(got, expected)
    rows = 4 if epochs is None else None
    assert shapes == [[rows, *array.shape[1:]] for array in tf.nest.flatten(given)]


@each_implementation
@pytest.mark.parametrize(("epochs", "threads", "passes"), [(1, 1, 1), (3, 1, 3), (2, 2, 4)])
def test_shuffled_rows_come_as_often_as_there_are_passes(epochs, threads, passes, make):
    options = {"batch_size": 4, "num_epochs": epochs, "num_threads": threads, "queue_capacity": 8}
    batches, _ = _batches(make(X, Y, shuffle=True, **options))
    counted = collections.Counter(np.concatenate([features["id"] for features, _ in batches]).tolist())
    assert counted == dict.fromkeys(range(ROWS), passes)
    for features, labels in batches:
        np.testing.assert_array_equal(labels, features["id"] * 2)
        np.testing.assert_array_equal(features["dense"], X["dense"][features["id"]])


def test_rows_are_shuffled_without_end_and_by_the_graphs_seed():
    def drawn(seed):
        def input_fn():
            _tf1.set_random_seed(seed)
            return numpy_input_fn(X["id"], batch_size=7, num_epochs=None, shuffle=True)()

        return np.concatenate(_batches(input_fn, 30)[0]).tolist()

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == set(range(ROWS)) and drawn(1)[:ROWS] != list(range(ROWS))


def test_a_session_resumes_shuffled_rows_at_a_checkpoints_position(tmp_path):
    def batches(folder, steps):
        with tf.Graph().as_default(), scope(save_data_position=True, seed=3):
            features, labels = numpy_input_fn(X, Y, batch_size=4, num_epochs=3, shuffle=True, queue_capacity=8)()
            step = _tf1.assign_add(_tf1.train.get_or_create_global_step(), 1)
            with _tf1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path / folder)) as session:
                return [session.run([features["id"], labels, step])[:2] for _ in range(steps)]

    expected = batches("at_once", 8)
    got = batches("in_two", 3) + batches("in_two", 5)
    np.testing.assert_array_equal(np.concatenate(got, 1), np.concatenate(expected, 1))
    np.testing.assert_array_equal(np.bincount(np.concatenate(got, 1)[0].astype(int)), np.full(ROWS, 3))


def test_rows_of_a_data_frame():
    frame = Frame({"id": X["id"], "name": X["name"]})
    (features, labels), *_ = _batches(pandas_input_fn(frame, Y.view(Series), batch_size=4, shuffle=False))[0]
    _assert_equal(features, {"id": X["id"][:4], "name": X["name"][:4]})
    _assert_equal(labels, Y[:4])
    both = Frame({"id": Y, "b": -Y})
    batches, _ = _batches(pandas_input_fn(frame, both, batch_size=4, shuffle=False))
    assert [len(labels["b"]) for _, labels in batches] == [4, 4, 2]
    _assert_equal(batches[-1][1], {"id": Y[8:], "b": -Y[8:]})
    _assert_equal(_batches(pandas_input_fn(frame, shuffle=False))[0], [{"id": X["id"], "name": X["name"]}])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: numpy_input_fn(X, Y), ValueError, "shuffle is None, wanted True"),
        (lambda: numpy_input_fn(X, Y, batch_size=0, shuffle=True), ValueError, "batch_size is 0, wanted 1 or more"),
        (lambda: numpy_input_fn({}, shuffle=True)(), ValueError, "x is an empty dict, wanted arrays$"),
        (lambda: numpy_input_fn(X, {}, shuffle=True)(), ValueError, "y is an empty dict, wanted arrays or None"),
        (lambda: numpy_input_fn([1, 2], shuffle=True)(), TypeError, "x is a list, wanted an array, or a dict of them"),
        (lambda: numpy_input_fn({"a": [1]}, shuffle=True)(), TypeError, r"x\['a'\] is a list"),
        (lambda: numpy_input_fn(X, {"id": Y}, shuffle=True)(), ValueError, "x and y both have 'id'"),
        (lambda: numpy_input_fn(X["id"], Y[:3], shuffle=True)(), ValueError, r"shapes \(10,\) of x, \(3,\) of y"),
        (lambda: pandas_input_fn(Frame(X), Y), ValueError, "shuffle is None"),
        (lambda: pandas_input_fn(Frame(X), target_column=1, shuffle=True), TypeError, "target_column is 1"),
        (
            lambda: pandas_input_fn(Frame(X), Y.view(Series), target_column="id", shuffle=True),
            ValueError,
            "x has a column 'id'",
        ),
        (
            lambda: pandas_input_fn(Frame(X, np.arange(ROWS) + 1), Y.view(Series), shuffle=True),
            ValueError,
            "the indices of x and y differ",
        ),
    ],
)
def test_invalid_input_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
