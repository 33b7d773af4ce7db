"""Factors by which the exchange of gradients multiplies them.

A program may compute a loss from exchanged gradients, such as a penalty, and take its gradient. This second gradient is
exchanged as well, and multiplied by the same factors. So they must not be in it already: the derivative of an exchanged
gradient passes them over. Then the workers compute what one worker computes with the batches of all.

A later loss is a mean over a worker's rows, whose weight counts on the way back through the exchange (`weighted_back`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import func_graph

from lockstep._src.collectives.slices import values_of, with_values

_PASSED = "LockstepPassed"


@tf.RegisterGradient(_PASSED)
def _passed(op: tf.Operation, grad: Any) -> list[Any]:
    del op
    return [grad, None]


def scaled(gradient: Any, factor: tf.Tensor, omits_nan: bool = False) -> Any:
    """Returns a gradient times a factor over which derivatives of the result pass.

    Args:
      gradient: a tensor or `tf.IndexedSlices`.
      factor: a scalar of the gradient's type.
      omits_nan: whether the result is zero for a factor of zero, even for NaN.
    """
    multiply = tf.math.multiply_no_nan if omits_nan else tf.multiply
    values = values_of(gradient)
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    is_in_function = isinstance(graph, func_graph.FuncGraph)
    if graph is not None and not is_in_function and not record.could_possibly_record():
        # This costs no operation. A tape would not see it.
        with graph.gradient_override_map({"Mul": _PASSED, "MulNoNan": _PASSED}):
            return with_values(gradient, multiply(values, factor))

    # The factor is an argument, so that TensorFlow does not search behind it for variables.
    @tf.custom_gradient
    def passing(values: tf.Tensor, factor: tf.Tensor) -> Any:
        return multiply(values, factor), lambda grad: (grad, None)

    return with_values(gradient, passing(values, factor))


def weighted_back(gradient: Any, weight: tf.Tensor) -> Any:
    """Returns an exchanged gradient, whose derivatives belong to a loss times this worker's weight.

    Args:
      gradient: a tensor or `tf.IndexedSlices`.
      weight: a scalar of the gradient's type. A loss of the weight zero does not count, even if it is NaN.
    """

    @tf.custom_gradient
    def weighted(values: tf.Tensor, weight: tf.Tensor) -> Any:
        return tf.identity(values), lambda grad: (tf.math.multiply_no_nan(grad, weight), None)

    return with_values(gradient, weighted(values_of(gradient), weight))
