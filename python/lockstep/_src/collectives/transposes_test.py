"""Tests of factors and gradients of named collectives: values to the last digit, gradients by finite differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

REDUCTIONS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "product": np.prod}
FACTORS = ((1.0, 1.0), (1 / 3, 1.0), (1.0, -2 / 7), (-1 / 3, 2 / 7), (0.0, 1.0))
STEP = 1e-6


def differences(loss, everyone, rank):
    """Returns the gradient, by the values of one rank, of a function of all ranks' values."""
    gradient = np.zeros_like(everyone[rank])
    for place in np.ndindex(gradient.shape):
        above, below = everyone.copy(), everyone.copy()
        above[(rank, *place)] += STEP
        below[(rank, *place)] -= STEP
        gradient[place] = (loss(above) - loss(below)) / (2 * STEP)
    return gradient


# Functions that run on workers.


def gradients_of_reductions():
    named.open_lane()
    size, rank = context.world_size, context.rank
    random = np.random.default_rng(5)
    everyone = random.normal(size=[size, 3, 2])
    weights = random.normal(size=[size, 3, 2])  # weights of each rank's loss
    own = tf.constant(everyone[rank])
    for (reduction, oracle), (before, behind) in itertools.product(REDUCTIONS.items(), FACTORS):
        factors = {"prescale": before, "postscale": behind}

        def value(values, oracle=oracle, before=before, behind=behind):
            return behind * oracle(before * values, axis=0)

        def step(own, reduction=reduction, factors=factors, name=None):
            with tf.GradientTape() as tape:
                tape.watch(own)
                (y,) = named.allreduce([own], reduction, **factors, name=name)
                loss = tf.reduce_sum(y * weights[rank])
            return y, tape.gradient(loss, own)

        wanted = differences(lambda values: np.sum(weights.sum(0) * value(values)), everyone, rank)  # noqa: B023
        named_step = lambda own: step(own, name="loss")  # noqa: B023, E731
        for run in (step, named_step, tf.function(step)):
            y, gradient = run(own)
            np.testing.assert_allclose(y, value(everyone), rtol=1e-14)
            np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-8, err_msg=f"{reduction} {factors}")
        if reduction not in ("sum", "mean"):
            continue
        with tf.GradientTape() as tape:
            tape.watch(own)
            (y,) = named.reducescatter([own], reduction, **factors)
            loss = tf.reduce_sum(y * np.array_split(weights[rank], size)[rank])
        rows = np.concatenate([np.array_split(weights[r], size)[r] for r in range(size)])
        wanted = differences(lambda values: np.sum(rows * value(values)), everyone, rank)  # noqa: B023
        np.testing.assert_allclose(tape.gradient(loss, own), wanted, rtol=1e-6, atol=1e-8)
    named.barrier(name="end")
    named.close_lane()


def digits_of_factors():
    """Checks that a third is the same double on all ranks, and in numpy."""
    named.open_lane()
    everyone = np.random.default_rng(7).normal(size=[2, 100])
    own = tf.constant(everyone[context.rank])
    third, seventh = 1 / 3, 1 / 7
    wanted = (everyone[0] * third + everyone[1] * third) * seventh
    for run in (lambda build: build(), lambda build: tf.function(build)()):
        (got,) = run(lambda: named.allreduce([own], prescale=third, postscale=np.float64(seventh)))
        np.testing.assert_array_equal(got, wanted)
    named.barrier(name="end")
    named.close_lane()


def exchange_of_unknown_shape():
    """Exchanges a shape whose rank is not known during tracing; rows that no split covers have no gradient."""
    named.open_lane()
    size, rank = context.world_size, context.rank

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def gradient_of(own):
        with tf.GradientTape() as tape:
            tape.watch(own)
            (rows,), _ = named.alltoall([own], [tf.ones([size], tf.int32)])
        return tape.gradient(rows, own, tf.ones_like(rows) * (rank + 1))

    got = gradient_of(tf.zeros([size + 1, 2, 3]))
    np.testing.assert_array_equal(got[:, 1, 2], [*range(1, size + 1), 0])
    named.barrier(name="end")
    named.close_lane()


def all_parts():
    exchange_of_unknown_shape()
    digits_of_factors()
    gradients_of_reductions()


def test_on_workers():
    call_workers(all_parts, 2, timeout_s=120)


def test_on_three_workers():
    call_workers(gradients_of_reductions, 3, timeout_s=120)
