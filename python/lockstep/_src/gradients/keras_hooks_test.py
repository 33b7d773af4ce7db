"""Tests of hooks in Keras, with stand-ins for a loss scale and its optimizers."""

from __future__ import annotations

import types

import pytest
import tensorflow as tf

from lockstep._src.gradients import keras_hooks
from lockstep._src.hooks.interception import around


class Plain:
    """An optimizer that does not exchange."""


class Exchanging:
    """An optimizer that exchanges: it doubles gradients."""

    skips_steps = False

    def expect_skipped_steps(self):
        self.skips_steps = True

    def apply_exchanged(self, outer, apply, grads, *args, **kwargs):
        assert outer.inner_optimizer is self
        return apply([2 * g for g in grads], *args, **kwargs)


class LossScale:
    def __init__(self, inner_optimizer, factor=1):
        self.inner_optimizer, self.factor = inner_optimizer, factor

    def apply(self, grads, variables=None):
        return [self.factor * g for g in grads], variables


@pytest.mark.parametrize("inner, wanted", [(Exchanging, [20]), (Plain, [10])])
def test_a_loss_scale_exchanges_before_it_looks_at_gradients(inner, wanted):
    apply = keras_hooks._exchanging_first(LossScale.apply)
    outer = LossScale(inner(), 10)
    assert apply(outer, [1]) == (wanted, None)
    assert apply(outer, [1], "v") == apply(outer, [1], variables="v") == apply(outer, grads=[1], variables="v")
    assert apply.__name__ == "apply"


def test_an_exchanging_optimizer_is_told_that_a_loss_scale_skips_steps():
    init = around(keras_hooks._init_loss_scale)(LossScale.__init__)
    outer, inner = LossScale.__new__(LossScale), Exchanging()
    init(outer, inner, factor=3)
    assert (outer.inner_optimizer, outer.factor) == (inner, 3)
    assert inner.skips_steps
    init(outer, Plain())


@pytest.mark.parametrize(
    "optimizer, wanted",
    [
        (Exchanging(), False),
        (LossScale(Exchanging()), False),
        (Plain(), True),
        (LossScale(Plain()), True),
        (None, True),
    ],
)
def test_models_whose_optimizer_exchanges_are_not_compiled_by_xla(optimizer, wanted):
    resolve = around(keras_hooks._resolve_jit)(lambda model: True)
    assert resolve(types.SimpleNamespace(optimizer=optimizer)) is wanted
    assert resolve(types.SimpleNamespace()) is True


def test_the_package_of_a_class_is_that_of_its_first_base_in_keras():
    root = tf.keras.optimizers.SGD.__module__.partition(".")[0]
    assert keras_hooks.root_of(type("Own", (tf.keras.optimizers.SGD,), {})) == root
    in_keras_2 = hasattr(tf.keras.optimizers, "legacy") and not hasattr(tf.keras.optimizers.SGD, "stateless_apply")
    assert (keras_hooks.tracker(tf.keras.optimizers.SGD) is not None) == in_keras_2


def test_hooks_of_a_package_are_one_function():
    assert keras_hooks.intercepts_keras2("tf_keras") is keras_hooks.intercepts_keras2("tf_keras")
    assert keras_hooks.intercepts_keras2("tf_keras") is not keras_hooks.intercepts_keras2("keras")
