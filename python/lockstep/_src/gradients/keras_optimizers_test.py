"""Tests of Keras' optimizers that exchange, with the Keras that TensorFlow loads: 3 or 2, and with its legacy ones."""

# Promise of this file (horovod_training.md): a wrapped optimizer of Keras keeps what its config lacks, and names of
# checkpoints.

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.gradients.exchange_test import RANKS, Lane
from lockstep._src.gradients.keras_optimizers import CallableList, is_exchanging, make_exchanging
from lockstep._src.gradients.settings import Exchange

KERAS_3 = hasattr(tf.keras.optimizers.SGD, "stateless_apply")
START, GRADIENT = np.array([1.0, 2.0], np.float32), np.array([0.5, -1.0], np.float32)
KINDS = ["optimizer"] if KERAS_3 else ["optimizer", "legacy"]


def plain(kind, name="SGD", **arguments):
    return getattr(tf.keras.optimizers if kind == "optimizer" else tf.keras.optimizers.legacy, name)(**arguments)


def exchanging(optimizer, **how):
    """Returns an optimizer that exchanges sums with equal ranks, and its lane."""
    made = make_exchanging(optimizer, Exchange(ranks=object(), reduction="sum", **how))
    made._updates.exchange.lane = Lane()
    return made, made._updates.exchange.lane


def variable():
    return tf.Variable(START)


def apply(optimizer, *variables):
    optimizer.apply_gradients([(tf.constant(GRADIENT), v) for v in variables])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_exchanged_before_they_are_applied(kind):
    optimizer, lane = exchanging(plain(kind, learning_rate=0.5, momentum=0.9))
    v, oracle, plain_optimizer = variable(), variable(), plain(kind, learning_rate=0.5, momentum=0.9)
    for _ in range(3):
        apply(optimizer, v)
        plain_optimizer.apply_gradients([(RANKS * tf.constant(GRADIENT), oracle)])
    np.testing.assert_array_equal(v, oracle)
    assert [call[0] for call in lane.calls] == ["agree", "sum"] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_local_variables_stay(kind):
    optimizer, _ = exchanging(plain(kind, learning_rate=0.5), scale_local=False)
    v, local = variable(), variable()
    optimizer.register_local_var(local)
    apply(optimizer, v, local)
    np.testing.assert_allclose(v, START - 0.5 * RANKS * GRADIENT)
    np.testing.assert_allclose(local, START - 0.5 * GRADIENT)


@pytest.mark.parametrize("kind", KINDS)
def test_passes_that_update_nothing_are_counted(kind):
    optimizer, _ = exchanging(plain(kind, learning_rate=0.5), passes=2)
    v, values = variable(), []
    for _ in range(4):
        apply(optimizer, v)
        values.append(v.numpy())
    step = 0.5 * RANKS * 2 * GRADIENT
    np.testing.assert_allclose(values, [START, START - step, START - step, START - 2 * step])
    assert int(optimizer.iterations) == 4 and int(optimizer._agg_helper.counter) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_class_has_the_name_and_the_config_of_the_original(kind):
    original = plain(kind, "Adam", learning_rate=0.25, beta_1=0.5)
    optimizer, _ = exchanging(original)
    assert is_exchanging(optimizer) and not is_exchanging(original) and not is_exchanging(None)
    assert isinstance(optimizer, type(original)) and type(optimizer).__name__ == "Adam"
    assert optimizer.get_config() == original.get_config()
    if KERAS_3:
        saved, wanted = map(tf.keras.optimizers.serialize, (optimizer, original))
        assert [saved[name] for name in ("module", "class_name")] == [wanted[name] for name in ("module", "class_name")]


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_with_state_hands_it_over(kind):
    original, v, oracle = plain(kind, learning_rate=0.5, momentum=0.9), variable(), variable()
    alone = plain(kind, learning_rate=0.5, momentum=0.9)
    apply(original, v)
    apply(alone, oracle)
    optimizer, _ = exchanging(original)
    apply(optimizer, v)
    alone.apply_gradients([(RANKS * tf.constant(GRADIENT), oracle)])
    np.testing.assert_array_equal(v, oracle)
    assert int(optimizer.iterations) == 2


def boosted(kind):
    """Returns an optimizer of a class whose config is not complete, and whose constructor has a required argument."""
    base = type(plain(kind))

    class Boosted(base):
        def __init__(self, boost, factor_of, **arguments):
            super().__init__(**arguments)
            self.boost, self.factor_of = boost, factor_of

        def apply_gradients(self, pairs, *args, **kwargs):
            pairs = [(self.boost * self.factor_of() * g, v) for g, v in pairs]
            return super().apply_gradients(pairs, *args, **kwargs)

    return Boosted(3.0, lambda: 2.0, learning_rate=0.5, momentum=0.9)


def changed_later(kind):
    optimizer = plain(kind, learning_rate=0.5)
    optimizer.momentum = optimizer.momentum  # an attribute that is set as programs do
    optimizer.learning_rate = 0.125
    return optimizer


def scheduled(kind):
    class Halving(tf.keras.optimizers.schedules.LearningRateSchedule):  # without get_config
        def __call__(self, step):
            return 1.0 / (2.0 + tf.cast(step, tf.float32))

    return plain(kind, learning_rate=Halving())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [boosted, changed_later, scheduled])
def test_everything_that_an_optimizer_was_given_counts(kind, make):
    original = make(kind)
    (optimizer, _), alone, v, oracle = exchanging(original), make(kind), variable(), variable()
    for _ in range(3):
        apply(optimizer, v)
        alone.apply_gradients([(RANKS * tf.constant(GRADIENT), oracle)])
    np.testing.assert_array_equal(v, oracle)
    # The original is an optimizer of its own still.
    again, w = make(kind), variable()
    apply(original, w)
    apply(again, other := variable())
    np.testing.assert_array_equal(w, other)
    counts = [int(o.iterations) for o in (optimizer, original)]
    assert counts == [3, 1] and len(variables_of(original)) == len(variables_of(again))


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_have_the_names_of_the_original_class(kind, tmp_path):
    names = []
    for optimizer in (plain(kind, "Adam"), exchanging(plain(kind, "Adam"))[0]):
        v = variable()
        apply(optimizer, v)
        path = tf.train.Checkpoint(optimizer=optimizer, v=v).write(str(tmp_path / "checkpoint"))
        names.append([name for name, _ in tf.train.list_variables(path)])
    assert names[0] == names[1]


def variables_of(optimizer):
    return optimizer.variables if KERAS_3 else optimizer.variables()


@pytest.mark.skipif(not KERAS_3, reason="options of Keras 3")
def test_variables_without_weight_decay_and_functions_as_learning_rates_stay():
    def decaying():
        optimizer = tf.keras.optimizers.AdamW(lambda: 0.25, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    import keras

    v, oracle = (keras.Variable(START, name="bias") for _ in range(2))
    optimizer, _ = exchanging(decaying())
    alone = decaying()
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant(GRADIENT), v)])
        alone.apply_gradients([(RANKS * tf.constant(GRADIENT), oracle)])
    np.testing.assert_array_equal(v.numpy(), oracle.numpy())
    # A loss scale's inner optimizer is copied as well, and tracked by its own tracker.
    inner = boosted("optimizer")
    scaled, _ = exchanging(tf.keras.optimizers.LossScaleOptimizer(inner))
    assert scaled.inner_optimizer is not inner and scaled.inner_optimizer.boost == 3.0
    copy = scaled.inner_optimizer
    assert copy._tracker.is_in_store("variables", copy.iterations) and copy.iterations is not inner.iterations
    assert copy.variables[0] is copy.iterations and copy._tracker.config["variables"][1] is copy._variables


@pytest.mark.parametrize("kind", KINDS)
def test_an_exchanging_optimizer_counts_as_its_original_class(kind):
    once, _ = exchanging(plain(kind, learning_rate=0.5))
    twice, lane = exchanging(once)
    v = variable()
    apply(twice, v)
    np.testing.assert_allclose(v, START - 0.5 * RANKS * GRADIENT)
    assert len(lane.calls) == 2 and type(twice).__mro__.count(type(once)) == 0


def test_something_else_is_refused():
    with pytest.raises(TypeError, match="got 'sgd', wanted an optimizer of Keras or of tf.compat.v1.train"):
        make_exchanging("sgd", Exchange(ranks=object()))


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no optimizers that compute gradients")
@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_of_keras_2_exchange_what_they_compute(kind):
    optimizer, lane = exchanging(plain(kind, learning_rate=0.5))
    v = variable()
    for compute in (optimizer.compute_gradients, optimizer._compute_gradients):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * GRADIENT)
        ((got, of),) = compute(loss, [v], tape=tape)
        np.testing.assert_array_equal(got, RANKS * GRADIENT)
        assert of is v
    calls = len(lane.calls)
    optimizer.apply_gradients([(got, of)])
    assert len(lane.calls) == calls == 4
    np.testing.assert_allclose(v, START - 0.5 * RANKS * GRADIENT)
    if kind == "optimizer":
        with pytest.raises(ValueError, match="SGD: only legacy optimizers take grad_loss"):
            optimizer._compute_gradients(loss, [v], grad_loss=1.0, tape=tape)


@pytest.mark.skipif(not KERAS_3, reason="optimizers of Keras 2 have a method for it")
def test_the_variables_of_keras_3_may_be_called():
    optimizer, _ = exchanging(plain("optimizer", learning_rate=0.5))
    assert isinstance(optimizer.variables, CallableList)
    assert optimizer.variables() == optimizer.variables
