"""HybridBackend's optimizers and decorators on one worker. For two see tests/multiprocess/scope/training_worker.py."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.hybridbackend import optimizers
from lockstep._src.estimator.estimator import Estimator

tf1 = tf.compat.v1
RATE, GRADIENT = 0.5, np.float32([1.0, -2.0])
ARGUMENTS = {"MomentumOptimizer": (RATE, 0.9), "GradientDescentOptimizer": (RATE,), "AdagradOptimizer": (RATE, 0.1)}


def stepped(optimizer):
    """Returns a variable that begins at 0 after two steps."""
    with tf.Graph().as_default(), tf1.Session() as session:
        w = tf1.get_variable("w", [2], initializer=tf1.zeros_initializer())
        train_op = optimizer().minimize(tf.reduce_sum(w * GRADIENT))
        session.run(tf1.global_variables_initializer())
        for _ in range(2):
            session.run(train_op)
        return session.run(w)


EXPECTED = {
    "GradientDescentOptimizer": -2 * RATE * GRADIENT,
    "MomentumOptimizer": -RATE * (GRADIENT + 1.9 * GRADIENT),
    "AdagradOptimizer": -RATE * (GRADIENT / np.sqrt(0.1 + GRADIENT**2) + GRADIENT / np.sqrt(0.1 + 2 * GRADIENT**2)),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("aggregation", [None, "compute_gradients", "apply_gradients"])
def test_an_optimizer_of_tensorflow_steps_as_numpy(name, aggregation):
    cls = optimizers.optimizer(name)
    if aggregation is not None:
        cls = optimizers.wraps_optimizer(getattr(tf1.train, name), aggregation)
    assert cls.__name__ == name and issubclass(cls, getattr(tf1.train, name))
    np.testing.assert_allclose(stepped(lambda: cls(*ARGUMENTS[name])), EXPECTED[name], rtol=1e-5)


def test_tensorflows_class_is_not_changed_and_has_one_class_that_exchanges():
    before = tf1.train.AdamOptimizer.compute_gradients
    made = optimizers.wraps_optimizer(tf1.train.AdamOptimizer)
    assert tf1.train.AdamOptimizer.compute_gradients is before is not made.compute_gradients
    assert made is optimizers.wraps_optimizer(tf1.train.AdamOptimizer) is optimizers.wraps_optimizer(made)
    assert made is optimizers.optimizer("AdamOptimizer") is optimizers.wraps(tf1.train.AdamOptimizer)
    assert made.__doc__ == tf1.train.AdamOptimizer.__doc__


@pytest.mark.parametrize("decorate", [optimizers.wraps, optimizers.wraps_optimizer])
def test_a_users_class_is_changed_itself_and_wrapped_once(decorate):
    class Own(tf1.train.GradientDescentOptimizer):
        __module__ = "program"
        calls = 0

        def compute_gradients(self, *args, **kwargs):
            Own.calls += 1
            return super(Own, self).compute_gradients(*args, **kwargs)  # noqa: UP008

    assert decorate(Own) is Own
    method = Own.compute_gradients
    assert decorate(Own) is Own and Own.compute_gradients is method
    np.testing.assert_allclose(stepped(lambda: Own(RATE)), -2 * RATE * GRADIENT)
    assert Own.calls == 1


class Other:
    """A class that is neither an optimizer nor an estimator."""


class OfTensorFlow:
    """An estimator of TensorFlow."""

    __module__ = "tensorflow_estimator.python.estimator.estimator"


class Derived(OfTensorFlow):
    """A user's estimator."""


@pytest.mark.parametrize(
    ("given", "wrapped"), [(Other, Other), (OfTensorFlow, Estimator), (Estimator, Estimator)], ids=lambda c: c.__name__
)
def test_other_classes_are_left_and_estimators_are_the_librarys(given, wrapped):
    assert optimizers.wraps(given) is wrapped


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: optimizers.wraps(3), TypeError, "^wraps: got 3, wanted a class$"),
        (lambda: optimizers.wraps(Derived), NotImplementedError, "^wraps: Derived derives from TensorFlow's own estim"),
        (
            lambda: optimizers.wraps_optimizer(Other),
            TypeError,
            "^wraps_optimizer: got <class .*Other'>, wanted a subclass of tf.compat.v1.train.Optimizer$",
        ),
        (
            lambda: optimizers.wraps_optimizer("Adam"),
            TypeError,
            "^wraps_optimizer: got 'Adam', wanted a subclass of tf",
        ),
        (
            lambda: optimizers.wraps_optimizer(tf1.train.AdamOptimizer, aggregation="never"),
            ValueError,
            "^wraps_optimizer: aggregation is 'never', wanted one of compute_gradients, apply_gradients$",
        ),
        (
            lambda: optimizers.optimizer("NoSuchOptimizer"),
            AttributeError,
            "^TensorFlow has no optimizer 'NoSuchOptimizer'; there are .*AdamOptimizer, .*LazyAdamOptimizer",
        ),
        (lambda: optimizers.optimizer("SyncReplicasOptimizer"), AttributeError, "no optimizer 'SyncReplicasOptimizer'"),
        (lambda: optimizers.optimizer("Saver"), AttributeError, "^TensorFlow has no optimizer 'Saver'; there are "),
    ],
    ids=["no class", "estimator", "other", "a name", "aggregation", "unknown", "with its own exchange", "no optimizer"],
)
def test_an_error_says_what_was_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_names_are_those_of_tensorflows_optimizers_and_lazy_adam():
    exported = {name for name in dir(tf1.train) if name.endswith("Optimizer")}
    assert exported - {"Optimizer", "SyncReplicasOptimizer"} <= set(optimizers.names())
    assert "LazyAdamOptimizer" in optimizers.names() and optimizers.names() == sorted(optimizers.names())
