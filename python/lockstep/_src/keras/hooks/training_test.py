"""Training of Keras 3 on one worker, against numpy. For two see tests/multiprocess/keras/training_test.py."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3"):
    pytest.skip("the hooks are those of Keras 3", allow_module_level=True)

from lockstep._src.hooks.interception import around  # noqa: E402
from lockstep._src.keras.hooks import training  # noqa: E402
from lockstep._src.scope import scope  # noqa: E402

optimizers = keras.optimizers


class _Writes(keras.callbacks.Callback):
    def _write(self, batch, logs=None):
        raise tf.errors.OutOfRangeError(None, None, "/a/log; File too large")


class _WritesBefore(_Writes):
    on_train_batch_begin = on_test_batch_begin = on_predict_batch_begin = _Writes._write


class _WritesBehind(_Writes):
    on_train_batch_end = on_test_batch_end = on_predict_batch_end = _Writes._write


@pytest.mark.parametrize("callback", [_WritesBefore, _WritesBehind])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_callback_that_cannot_write_is_an_error(method, callback):
    data = np.ones((8, 2), np.float32)
    with scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(tf.errors.ResourceExhaustedError, match="^a callback failed: /a/log; File too large"):
            getattr(model, method)(*([data] if method == "predict" else [data, data[:, :1]]), callbacks=[callback()])


def test_slices_of_one_row_are_summed_before_they_are_squared():
    """The slots are those of Adagrad with the dense gradient, which numpy computes."""
    with scope():
        variable = keras.Variable(np.zeros([3, 1], np.float32))
        optimizer = optimizers.Adagrad(1.0, initial_accumulator_value=0.5, epsilon=0.0, clipvalue=100.0)
        slices = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([1, 1, 2]), [3, 1])
        optimizer.apply([slices], [variable])
    dense = np.float32([[0], [3], [4]])
    np.testing.assert_allclose(variable.numpy(), -dense / np.sqrt(0.5 + dense**2), rtol=1e-6)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (lambda: (tf.zeros([3, 2]), tf.zeros([3])), 3),
        (lambda: {"b": tf.zeros([4]), "a": tf.constant(1.0)}, 4),
        (lambda: tf.sparse.from_dense(np.eye(5)), 5),
        (lambda: tf.ragged.constant([[1], [], [2, 3]]), 3),
        (lambda: (tf.zeros([0, 2]),), 0),
    ],
    ids=["dense", "a scalar first", "sparse", "ragged", "no rows"],
)
def test_the_rows_of_a_batch_are_counted(batch, rows):
    assert training._rows(batch()) == rows


@pytest.mark.parametrize("batch", [lambda: (tf.constant(1.0),), tuple], ids=["a scalar", "nothing"])
def test_a_batch_without_rows_is_refused(batch):
    with pytest.raises(ValueError, match="^got a batch without a tensor that has rows .*, wanted tensors"):
        training._rows(batch())


def test_each_batch_has_its_weight_while_it_is_used():
    step = training._Step()
    used = [(data, float(step.weight.value)) for data in step.one_by_one([training._Batch(n, n / 2) for n in (1, 3)])]
    assert used == [(1, 0.5), (3, 1.5)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_pass_resets_the_weight(fails):
    step = training._Step()

    def fit(model):
        next(step.one_by_one([training._Batch("data", 0.25)]))
        assert float(step.weight.value) == 0.25
        if fails:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if fails else contextlib.nullcontext():
        step.run_pass(fit, None)
    assert float(step.weight.value) == 1.0


def test_an_interrupt_is_not_lost_where_a_step_ends():
    """Python loses exceptions of destructors, so none of a step's may run code of TensorFlow."""
    step = training._Step()
    batches = step.one_by_one([training._Batch("data", 0.25)])
    next(batches)
    del batches  # as Keras does when the next step begins
    assert float(step.weight.value) == 0.25


def test_a_nested_scale_of_the_loss_weighs_once():
    step = training._Step()
    step.weight.assign(0.5)
    scaled = around(step.scale_loss)(lambda optimizer, loss: optimizer(loss))
    assert float(scaled(lambda loss: scaled(lambda inner: inner * 8, loss), 3.0)) == 12.0


@pytest.mark.parametrize(
    ("values", "reduction", "expected"),
    [
        ([], "sum_over_batch_size", 0.0),
        ([], "sum", 0.0),
        ([], None, []),
        ([1.0, 3.0], "sum_over_batch_size", 2.0),
        ([1.0, 3.0], None, [1.0, 3.0]),
    ],
    ids=str,
)
def test_the_loss_of_no_rows_is_0(values, reduction, expected):
    from keras.src.losses.loss import reduce_values

    reduced = training._reduce_values(reduce_values, tf.constant(values, tf.float32), reduction=reduction)
    np.testing.assert_array_equal(reduced, np.float32(expected))


@pytest.mark.parametrize("masked", [False, True])
def test_moments_are_those_of_the_rows_that_count(masked):
    x = np.random.RandomState(0).randn(4, 3, 2).astype(np.float32)
    mask = np.random.RandomState(1).rand(4, 3) > 0.4 if masked else np.ones([4, 3], bool)
    layer = keras.layers.BatchNormalization()
    layer.build(x.shape)
    with scope():
        mean, variance = training._moments_of_all(layer, tf.constant(x), tf.constant(mask) if masked else None)
    np.testing.assert_allclose(mean, x[mask].mean(0), atol=1e-6)
    np.testing.assert_allclose(variance, x[mask].var(0), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizers.Lamb(), r"^lamb(_\d+)?: not implemented for sharded tables, because it computes norms"),
        (
            lambda: optimizers.LossScaleOptimizer(optimizers.Lamb()),
            r"^lamb(_\d+)?: not implemented for sharded tables, because it",
        ),
        (
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(use_ema=True)),
            r"^sgd(_\d+)?: use_ema is not implemented for s",
        ),
        (lambda: optimizers.Adam(use_ema=True), r"^adam(_\d+)?: use_ema is not implemented for sharded tables$"),
    ],
    ids=["Lamb", "Lamb inside", "averages inside", "averages"],
)
def test_optimizers_that_need_a_whole_table_are_refused(make, message):
    with pytest.raises(NotImplementedError, match=message):
        training._check_can_shard(make())


@pytest.mark.parametrize(
    "make",
    [optimizers.Adam, lambda: optimizers.SGD(clipvalue=1.0), lambda: optimizers.SGD(global_clipnorm=1.0)],
    ids=["Adam", "clipvalue", "global_clipnorm"],
)
def test_other_optimizers_apply_gradients_of_a_shard(make):
    training._check_can_shard(make())
    training._check_can_shard(optimizers.LossScaleOptimizer(make()))
