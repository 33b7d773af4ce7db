"""Tests of gradients that are summed over several passes, against sums of numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.gradients.accumulation import Passes
from lockstep._src.gradients.exchange import GradientExchange
from lockstep._src.gradients.exchange_test import RANKS, Lane, slices
from lockstep._src.gradients.settings import Exchange

tf1 = tf.compat.v1
OWN = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def summing(passes, **how):
    """Returns sums over passes that are exchanged as a sum over `RANKS` equal ranks, and the lane."""
    exchange = GradientExchange(Exchange(ranks=object(), reduction="sum", passes=passes, **how), "x")
    exchange.lane = Lane()
    return Passes(exchange), exchange.lane


def reductions(lane):
    return [call for call in lane.calls if call[0] == "sum"]


@pytest.mark.parametrize("is_function", [False, True])
def test_every_third_pass_exchanges_the_sum_of_three(is_function):
    passes, lane = summing(3)
    v = tf.Variable(tf.zeros([3]))

    def add(gradient):
        return passes.exchange([gradient], [v])

    add = tf.function(add, autograph=False) if is_function else add
    for i, own in enumerate(OWN):
        (got,) = add(tf.constant(own))
        so_far = OWN[i - i % 3 : i + 1].sum(0)
        np.testing.assert_allclose(got, so_far * (RANKS if i % 3 == 2 else 1), rtol=1e-5)
        assert int(passes.counter) == (i + 1) % 3
    assert is_function or len(reductions(lane)) == 2


def test_in_a_session_sums_are_local_variables_that_no_saver_saves():
    with tf.Graph().as_default(), tf1.Session() as session:
        v = tf1.get_variable("v", [3], use_resource=True)
        passes, _ = summing(2)
        own = tf1.placeholder(tf.float32, [3])
        (got,) = passes.exchange([own], [v])
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        results = [session.run(got, {own: value}) for value in OWN[:4]]
        assert tf1.global_variables() == [v]
    np.testing.assert_allclose(results[1], RANKS * OWN[:2].sum(0), rtol=1e-5)
    np.testing.assert_allclose(results[3], RANKS * OWN[2:4].sum(0), rtol=1e-5)


def test_an_average_divides_by_the_passes():
    passes, _ = summing(2, average_passes=True)
    v = tf.Variable(tf.zeros([3]))
    for own in OWN[:2]:
        (got,) = passes.exchange([tf.constant(own)], [v])
    np.testing.assert_allclose(got, RANKS * OWN[:2].mean(0), rtol=1e-5)


def test_none_adds_nothing_and_stays_none_until_a_pass_has_a_gradient():
    passes, _ = summing(2)
    variables = [tf.Variable(tf.zeros([3])) for _ in range(3)]
    first = passes.exchange([tf.constant(OWN[0]), None, None], variables)
    second = passes.exchange([None, tf.constant(OWN[1]), None], variables)
    assert [g is None for g in first] == [False, True, True]
    assert [g is None for g in second] == [False, False, True]
    np.testing.assert_allclose(second[0], RANKS * OWN[0], rtol=1e-5)
    np.testing.assert_allclose(second[1], RANKS * OWN[1], rtol=1e-5)


def test_passes_over_other_variables_are_counted_separately():
    passes, lane = summing(2)
    a, b = (tf.Variable(tf.zeros([3])) for _ in range(2))
    for v in (a, b):
        passes.exchange([tf.constant(OWN[0])], [v])
    assert int(passes.counter) == 1 and not reductions(lane)
    for v in (a, b):
        passes.exchange([tf.constant(OWN[0])], [v])
    assert int(passes.counter) == 0 and len(reductions(lane)) == 2


def test_a_step_is_applied_when_it_is_complete():
    passes, _ = summing(2)
    v = tf.Variable(tf.zeros([3]))
    done = []
    for own in OWN[:4]:
        gradients = passes.exchange([tf.constant(own)], [v])
        passes.if_complete(gradients, [v], lambda: done.append("applied"), lambda: done.append("skipped"))
    assert done == ["skipped", "applied"] * 2


def test_an_incomplete_step_is_dropped_when_the_ranks_change():
    passes, _ = summing(2)
    v = tf.Variable(tf.zeros([3]))
    passes.exchange([tf.constant(OWN[0])], [v])
    passes._made.forget()
    assert int(passes.counter) == 0
    passes.exchange([tf.constant(OWN[1])], [v])
    (got,) = passes.exchange([tf.constant(OWN[2])], [v])
    np.testing.assert_allclose(got, RANKS * OWN[1:3].sum(0), rtol=1e-5)


def test_slices_are_summed_only_as_dense_gradients():
    passes, _ = summing(2)
    v = tf.Variable(tf.zeros([5, 3]))
    with pytest.raises(ValueError, match=r"x: got slices \(tf.IndexedSlices\), .* sparse_as_dense=True"):
        passes.exchange([slices(2)], [v])
    passes, _ = summing(2, sparse_as_dense=True)
    for _ in range(2):
        (got,) = passes.exchange([slices(2)], [v])
    np.testing.assert_array_equal(got, 2 * RANKS * np.array([[2.0] * 3] * 2 + [[0.0] * 3] * 3))
