"""The names that `horovod.keras` and `horovod.tensorflow.keras` share, in a job of one rank, against numpy and Keras.

Compression to 16 bits shows which gradients are exchanged: it rounds only these.
"""

import inspect
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd_keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_tf_keras
from horovod._keras import shared

# The value is exact in 32 bits. In 16 bits it becomes 1.
FINE = 1 + 2**-12


@pytest.fixture(name="job", autouse=True)
def _job():
    """Joins a job of one rank, and leaves it after the test."""
    hvd.init()
    yield
    hvd.shutdown()


def _layer():
    """Returns a layer y = w x with w = 2, which is built."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(2.0))
    layer.build((None, 1))
    return layer


def _weights_after_steps(optimizer, variables, gradients):
    """Applies each gradient to all variables in turn; returns each variable's value."""
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient, shape=v.shape), v) for v in variables])
    return [float(np.asarray(tf.convert_to_tensor(v)).item()) for v in variables]


def test_both_modules_have_all_names():
    for name in shared.__all__:
        found = {getattr(hvd_keras, name), getattr(hvd_tf_keras, name)}
        assert len(found) == 1, name
    # These differ only in the order of their parameters.
    in_order = [list(inspect.signature(module.DistributedOptimizer).parameters) for module in (hvd_keras, hvd_tf_keras)]
    assert in_order[0] != in_order[1] and sorted(in_order[0]) == sorted(in_order[1])


@pytest.mark.parametrize("module", [hvd_keras, hvd_tf_keras])
def test_functions_belong_to_their_module(module):
    for function in (module.load_model, module.DistributedOptimizer):
        assert function.__module__ == module.__name__ and pickle.loads(pickle.dumps(function)) is function
    assert "keras" not in inspect.signature(module.load_model).parameters


def _places(caught):
    """Returns the files of the warnings that name `num_groups`; others may be of libraries."""
    return [warning.filename for warning in caught if "num_groups" in str(warning.message)]


def test_a_warning_names_the_programs_line():
    program = "optimizer = make(sgd, num_groups=1)"
    for make in (hvd_keras.DistributedOptimizer, hvd_tf_keras.DistributedOptimizer, hvd.DistributedOptimizer):
        with pytest.warns(DeprecationWarning, match="num_groups is called groups") as caught:
            exec(compile(program, "program.py", "exec"), {"make": make, "sgd": keras.optimizers.SGD(1.0)})
        assert _places(caught) == ["program.py"]
    with pytest.warns(DeprecationWarning, match="num_groups is called groups") as caught:
        exec(compile(program, "program.py", "exec"), {"make": hvd.DistributedGradientTape, "sgd": tf.GradientTape()})
    assert _places(caught) == ["program.py"]


def test_values_are_reduced_at_once():
    value = np.array([[1.5, -2.0], [4.0, FINE]], np.float32)
    np.testing.assert_array_equal(shared.allreduce(value), value)
    with pytest.warns(DeprecationWarning, match="op=hvd.Sum for average=False"):
        np.testing.assert_array_equal(shared.allreduce([1, 2], average=False), [1, 2])
    np.testing.assert_array_equal(shared.allreduce(value, prescale_factor=2.0, postscale_factor=0.25), value / 2)
    rounded = shared.allreduce(value, compression=hvd.Compression.fp16, op=hvd.Sum)
    np.testing.assert_array_equal(rounded, value.astype(np.float16))
    assert rounded.dtype == tf.float32
    np.testing.assert_array_equal(shared.allgather(value), value)
    np.testing.assert_array_equal(shared.broadcast(value, 0), value)
    np.testing.assert_array_equal(shared.reducescatter(value, op=hvd.Sum), value)


def test_wrong_arguments_of_reductions_are_named():
    with pytest.raises(ValueError, match="got both op and average"):
        shared.allreduce(1.0, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="op: got 9, wanted one of hvd.Average"):
        shared.reducescatter([1.0], op=9)
    with pytest.raises(ValueError, match="compression is 'fp16', wanted hvd.Compression.none, fp16"):
        shared.allreduce(1.0, compression="fp16")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"broadcast b: root_rank is 1, wanted one of .*\[0\]"):
        shared.broadcast(1.0, 1, name="b")
    with pytest.raises(RuntimeError, match="eager execution"):
        shared.broadcast_global_variables(0)


def test_a_distributed_optimizer_applies_exchanged_gradients():
    for make, rounded in (
        (shared.DistributedOptimizer, True),
        (shared.PartialDistributedOptimizer, True),
        (lambda plain, compression: plain, False),
    ):
        optimizer = make(keras.optimizers.SGD(0.5), compression=hvd.Compression.fp16)
        assert type(optimizer).__name__ == "SGD"
        got = _weights_after_steps(optimizer, [tf.Variable([2.0])], [FINE, 3.0])
        assert got == [2.0 - 0.5 * ((1.0 if rounded else FINE) + 3.0)]


@pytest.mark.parametrize(("average", "factor"), [(False, 1.0), (True, 0.5)])
def test_several_passes_are_summed_or_averaged_before_a_step(average, factor):
    optimizer = shared.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    weight = tf.Variable([0.0])
    assert _weights_after_steps(optimizer, [weight], [1.0]) == [0.0]
    assert _weights_after_steps(optimizer, [weight], [2.0, 16.0]) == [-3.0 * factor]


def test_gradients_of_local_layers_are_not_exchanged():
    local, other = _layer(), _layer()
    optimizer = shared.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.fp16, local_layers=[local]
    )
    weights = [local.kernel, other.kernel]
    assert _weights_after_steps(optimizer, weights, [FINE]) == [2.0 - FINE, 1.0]
    with pytest.raises(ValueError, match="tf.keras.layers.Layer type"):
        shared.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=["dense"])


MAKERS = [shared.DistributedOptimizer, shared.PartialDistributedOptimizer]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("op", [hvd.Adasum, hvd.Min])
def test_an_operation_other_than_average_and_sum_is_refused(make, op):
    with pytest.raises(ValueError, match="op currently only supports Average and Sum"):
        make(keras.optimizers.SGD(1.0), op=op)


@pytest.mark.parametrize("make", MAKERS)
def test_an_argument_that_is_no_optimizer_is_named(make):
    with pytest.raises(TypeError, match="wanted an optimizer"):
        make("sgd")


class Halving(keras.optimizers.SGD):
    """An optimizer of a program's own, whose class needs to be given to load it."""


@pytest.mark.parametrize("arguments", [{"custom_optimizers": [Halving]}, {"custom_objects": {"Halving": Halving}}])
def test_a_loaded_model_trains_like_kerass_own_and_exchanges(tmp_path, arguments):
    x, path = np.array([[1.0], [2.0]], np.float32), tmp_path / "model.keras"
    saved = keras.Sequential([keras.layers.Input([1]), _layer()])
    saved.compile(Halving(0.125, momentum=0.5), "mse")
    saved.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    saved.save(path)
    loaded = shared.load_model(keras, path, **arguments)
    assert isinstance(loaded.optimizer, Halving) and type(loaded.optimizer) is not Halving
    np.testing.assert_array_equal(loaded.get_weights(), saved.get_weights())
    for model in (saved, loaded):
        model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 4
    np.testing.assert_allclose(loaded.get_weights(), saved.get_weights(), rtol=1e-6)


class Rounding(Halving):
    """Loads as an optimizer that exchanges gradients of 16 bits."""

    @classmethod
    def from_config(cls, config):
        return shared.DistributedOptimizer(Halving.from_config(config), compression=hvd.Compression.fp16)


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ({"custom_optimizers": [Halving]}, FINE),
        ({"custom_optimizers": [Halving], "compression": hvd.Compression.fp16}, 1.0),
        ({"custom_objects": {"Halving": Rounding}}, 1.0),
    ],
)
def test_a_loaded_model_compresses_gradients_unless_its_optimizer_exchanges_already(tmp_path, arguments, step):
    saved = keras.Sequential([keras.layers.Input([1]), _layer()])
    saved.compile(Halving(1.0), "mse")
    saved.save(tmp_path / "model.keras")
    loaded = shared.load_model(keras, tmp_path / "model.keras", **arguments)
    assert _weights_after_steps(loaded.optimizer, loaded.trainable_variables, [FINE]) == [2.0 - step]


def test_a_loaded_model_without_an_optimizer_stays_as_it_is(tmp_path):
    saved = keras.Sequential([keras.layers.Input([1]), _layer()])
    saved.save(tmp_path / "model.keras")
    loaded = shared.load_model(keras, tmp_path / "model.keras")
    assert getattr(loaded, "optimizer", None) is None
    np.testing.assert_array_equal(loaded.get_weights(), saved.get_weights())
