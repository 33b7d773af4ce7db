"""Tests of the derivatives of exchanged gradients, in graphs, of tapes and in functions."""

# Promise of this file (hybridbackend.md): a step of meta-learning gives what one worker computes (HybridBackend, a
# wrong result: derivatives of exchanged gradients are averaged without weights, and an empty share gives NaN).

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.graph import gradient_scale

tf1 = tf.compat.v1
POINT = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def _scaled(x):
    return gradient_scale.scaled(x * x, tf.constant(3.0))


def _without_rows(x):
    return gradient_scale.weighted_back(x * x, tf.constant(0.0)) * float("nan")


def _with_rows(x):
    return gradient_scale.weighted_back(x * x, tf.constant(0.5))


# Each function with its value, and its derivative as the exchange is to see it.
CASES = [
    (_scaled, 3 * POINT**2, 2 * POINT),
    (_with_rows, POINT**2, POINT),
    (_without_rows, POINT * np.nan, 0 * POINT),
]


@pytest.mark.parametrize(("function", "value", "derivative"), CASES)
def test_derivatives_pass_over_factors_and_are_weighted(function, value, derivative):
    def by_tape(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, x)

    results = [by_tape(tf.constant(POINT)), tf.function(by_tape)(tf.constant(POINT))]
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf.constant(POINT)
        y = function(x)
        results.append(session.run([y, tf.gradients(y, x)[0]]))
        results.append(session.run(by_tape(x)))
        with tf.GradientTape():
            y = function(x)
        results.append(session.run([y, tf.gradients(y, x)[0]]))
    for number, got in enumerate(results):
        np.testing.assert_allclose(np.stack(got), [value, derivative], err_msg=str(number))
