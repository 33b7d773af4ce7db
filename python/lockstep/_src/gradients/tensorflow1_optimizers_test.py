"""Tests of optimizers of TensorFlow 1 that exchange: by a scope's hooks, as a class, and around another optimizer."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.gradients import provenance, tensorflow1_optimizers
from lockstep._src.gradients.exchange_test import RANKS, Lane
from lockstep._src.gradients.settings import Exchange
from lockstep._src.gradients.tensorflow1_optimizers import ExchangingOptimizer, exchange_in, intercept_optimizers
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception

tf1 = tf.compat.v1
START, GRADIENT = np.array([1.0, 2.0], np.float32), np.array([0.5, -1.0], np.float32)


def methods():
    """Returns the methods that a scope replaces. A table of another test may have replaced some as well."""
    return {name: vars(tf1.train.Optimizer)[name] for name in ("compute_gradients", "apply_gradients", "__init__")}


@pytest.fixture
def exchanges(monkeypatch):
    """Replaces the exchange of a scope; the list has an entry for each method that exchanges."""
    done = []

    class Updates:
        @property
        def steps(self):
            return self

        def computed(self, gradients, variables, has_exchanged):
            return [] if has_exchanged else None

        def exchange(self, gradients, variables, which):
            done.append("computed" if which is None else "computed inside")
            provenance.mark(gradients)
            return gradients

        def apply(self, gradients, variables, apply, skip):
            done.append("applied")
            return apply(gradients)

    monkeypatch.setattr(tensorflow1_optimizers, "ScopeUpdates", Updates)
    return done


@pytest.fixture
def own_methods():
    return methods()


@pytest.fixture
def intercepted(own_methods):
    with Interception(symbols.SCOPE) as interception:
        intercept_optimizers(interception)
        yield interception


def trained(optimizer):
    """Returns the variable after a step of `minimize`."""
    with tf.Graph().as_default(), tf1.Session() as session:
        v = tf1.get_variable("v", initializer=START, use_resource=True)
        step = optimizer.minimize(tf.reduce_sum(v * GRADIENT))
        session.run(tf1.global_variables_initializer())
        session.run(step)
        return session.run(v)


def test_an_optimizer_exchanges_what_it_computes_and_what_it_applies(exchanges, own_methods, intercepted):
    optimizer = tf1.train.GradientDescentOptimizer(0.5)
    np.testing.assert_allclose(trained(optimizer), START - 0.5 * GRADIENT)
    assert exchanges == ["computed", "applied"]
    intercepted.undo()
    trained(optimizer)
    assert exchanges == ["computed", "applied"] * 2, "an optimizer of a scope exchanges after it"
    trained(tf1.train.GradientDescentOptimizer(0.5))
    assert len(exchanges) == 4
    assert methods() == own_methods


def test_a_class_that_is_defined_in_a_scope_exchanges_once(exchanges, intercepted):
    class Doubled(tf1.train.GradientDescentOptimizer):
        def compute_gradients(self, *args, **kwargs):
            return [(2.0 * g, v) for g, v in super().compute_gradients(*args, **kwargs)]

    own = vars(Doubled)["compute_gradients"]
    np.testing.assert_allclose(trained(Doubled(0.5)), START - GRADIENT)
    assert exchanges == ["computed", "computed inside", "applied"]
    intercepted.undo()
    assert vars(Doubled)["compute_gradients"] is not own
    assert not hasattr(Doubled.compute_gradients, "_lockstep")


def test_an_optimizer_keeps_the_laziness_of_the_time_when_it_was_made(exchanges, intercepted, monkeypatch):
    monkeypatch.setattr(context.options, "grad_lazy_sync", True)
    optimizer = tf1.train.GradientDescentOptimizer(0.5)
    monkeypatch.setattr(context.options, "grad_lazy_sync", False)
    np.testing.assert_allclose(trained(optimizer), START - 0.5 * GRADIENT)
    assert exchanges == ["applied"]


@pytest.mark.parametrize("lazy, wanted", [(None, ["computed", "applied"]), (True, ["applied"])])
def test_a_class_may_exchange_permanently(exchanges, lazy, wanted):
    class Own(tf1.train.GradientDescentOptimizer):
        pass

    exchange_in(Own, lazy)
    exchange_in(Own, lazy)
    np.testing.assert_allclose(trained(Own(0.5)), START - 0.5 * GRADIENT)
    assert exchanges == wanted
    exchanges.clear()
    trained(tf1.train.GradientDescentOptimizer(0.5))
    assert exchanges == []


def around(inner, **how):
    made = ExchangingOptimizer(inner, Exchange(ranks=object(), reduction="sum", **how), "x")
    made._lockstep_updates.exchange.lane = Lane()
    return made, made._lockstep_updates.exchange.lane


def test_gradients_are_exchanged_once_when_they_are_computed_and_applied_by_the_wrapped_optimizer():
    optimizer, lane = around(tf1.train.MomentumOptimizer(0.5, 0.9))
    np.testing.assert_allclose(trained(optimizer), START - 0.5 * RANKS * GRADIENT)
    assert [call[0] for call in lane.calls if call[0] != "agree"] == ["sum"]
    assert optimizer.get_slot_names() == ["momentum"]


def test_gradients_from_elsewhere_are_exchanged_when_they_are_applied():
    optimizer, lane = around(tf1.train.GradientDescentOptimizer(0.5))
    v, local = tf.Variable(START), tf.Variable(START)
    optimizer.register_local_var(local)
    optimizer.apply_gradients([(tf.constant(GRADIENT), v), (tf.constant(GRADIENT), local)])
    np.testing.assert_allclose(v, START - 0.5 * RANKS * GRADIENT)
    # The gradient of the mean of all ranks' losses.
    np.testing.assert_allclose(local, START - 0.5 * GRADIENT / RANKS)


def test_the_global_step_counts_passes_that_update_nothing():
    optimizer, _ = around(tf1.train.GradientDescentOptimizer(0.5), passes=2)
    v, count = tf.Variable(START), tf.Variable(0, dtype=tf.int64)
    values = []
    for _ in range(4):
        optimizer.apply_gradients([(tf.constant(GRADIENT), v)], global_step=count)
        values.append(v.numpy())
    assert count.numpy() == 4
    step = 0.5 * RANKS * 2 * GRADIENT
    np.testing.assert_allclose(values, [START, START - step, START - step, START - 2 * step])
