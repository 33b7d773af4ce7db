"""Tests that gradients are exchanged once: when the optimizer computes them, or when it applies them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lockstep._src.gradients import provenance
from lockstep._src.gradients.exchange_test import RANKS, Lane, first, gradient
from lockstep._src.gradients.optimizers import OwnUpdates, exchanging_compute
from lockstep._src.gradients.settings import Exchange


def updates(**how):
    made = OwnUpdates(Exchange(ranks=object(), **how), "x")
    made.exchange.lane = Lane()
    return made


class Optimizer:
    """An optimizer that computes a gradient of 1 for each variable, and records what it applies."""

    def __init__(self, own, inner=None):
        self.updates, self.inner, self.applied = own, inner, []

    def compute(self, variables):
        if self.inner is not None:
            return self.inner.exchanging(variables)
        return [(gradient(1), v) for v in variables]

    exchanging = exchanging_compute(compute, lambda optimizer: optimizer.updates)

    def apply(self, pairs):
        def apply(gradients):
            self.applied.append(first(gradients))

        self.updates.apply([g for g, _ in pairs], [v for _, v in pairs], apply, lambda: None)


def calls(optimizer):
    return [call for call in optimizer.updates.exchange.lane.calls if call[0] != "agree"]


def variables():
    return [tf.Variable(tf.zeros([3])) for _ in range(2)]


def test_computed_gradients_are_exchanged_once():
    optimizer = Optimizer(updates(reduction="sum"))
    pairs = optimizer.exchanging(variables())
    assert first([g for g, _ in pairs]) == [RANKS, RANKS]
    optimizer.apply(pairs)
    optimizer.apply([(2 * g, v) for g, v in optimizer.exchanging([v for _, v in pairs])])
    assert optimizer.applied == [[RANKS, RANKS], [2 * RANKS, 2 * RANKS]]
    assert len(calls(optimizer)) == 2


def test_gradients_from_elsewhere_are_exchanged_when_they_are_applied():
    optimizer = Optimizer(updates(reduction="sum"))
    optimizer.apply([(gradient(1), v) for v in variables()])
    assert optimizer.applied == [[RANKS, RANKS]]


def test_an_optimizer_around_an_exchanging_one_does_not_exchange_again():
    inner = Optimizer(updates(reduction="sum"))
    outer = Optimizer(updates(reduction="sum"), inner)
    assert first([g for g, _ in outer.exchanging(variables())]) == [RANKS, RANKS]
    assert len(calls(inner)) == 1 and not calls(outer)


def test_without_updates_gradients_are_those_that_were_computed():
    optimizer = Optimizer(None)
    assert first([g for g, _ in optimizer.exchanging(variables())]) == [1, 1]


def test_gradients_applied_while_others_are_applied_stay():
    own = updates(reduction="sum")
    seen = []

    def outer(gradients):
        own.apply(gradients, [], lambda inner: seen.append(first(inner)), lambda: None)

    own.apply([gradient(1)], variables()[:1], outer, lambda: None)
    assert seen == [[RANKS]]


def test_a_tape_and_several_passes_do_not_go_together():
    own, given = updates(reduction="sum", passes=2), gradient(1)
    provenance.mark([given])
    with pytest.raises(ValueError, match="wrap the tape or the optimizer, not both"):
        own.apply([given], variables()[:1], lambda _: None, lambda: None)
