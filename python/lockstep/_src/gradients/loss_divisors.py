"""Gradients of losses that divide by something other than a batch's rows: a mask's values, a sum of weights, kept rows.

A worker's gradients are weighted by its rows, because most losses are means over rows (`graph/row_weights.py`,
`keras/hooks/training.py`). A loss with the divisor d_r on worker r must count by d_r instead. So the gradient that
enters it is multiplied by d_r * R / (d * w_r). R is the number of workers, and d the sum of their divisors. w_r is the
weight that the worker's gradients get for its rows. The loss itself stays this worker's own. So only the backward pass
has a collective, and one worker may evaluate by itself.

This module replaces losses of TensorFlow 1, and `keras/hooks/training.py` losses of Keras 3.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.graph import row_weights
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around


def intercept_losses(interception: Interception) -> None:
    """Makes losses of TensorFlow 1 count by their divisors during the interception."""
    if context.world_size == 1:
        return
    losses = _Losses()
    interception.replace(symbols.WEIGHTED_LOSS, around(losses.compute))
    interception.replace(symbols.MEAN_OF_LOSSES, around(losses.mean))


def counting_by(divisor: Any, loss: tf.Tensor, weight_of_rows: Callable[[tf.Tensor], tf.Tensor | None]) -> tf.Tensor:
    """Returns a loss whose gradient counts by its divisor.

    Args:
      divisor: a scalar, the number by which this worker has divided the loss.
      loss: the loss of this worker.
      weight_of_rows: returns the weight that gradients of the loss get for this worker's rows; None for 1. It is called
        if a gradient is computed.
    """
    divisor = tf.stop_gradient(tf.cast(divisor, tf.float32))

    @tf.custom_gradient
    def weighed(loss: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            total = ordered.allreduce(divisor, op="sum", name="divisor_of_loss")
            weight = weight_of_rows(loss)
            if weight is not None:
                total *= tf.cast(weight, tf.float32)
            share = tf.math.divide_no_nan(divisor * context.world_size, total)
            return upstream * tf.cast(share, upstream.dtype)

        return tf.identity(loss), gradient

    return weighed(loss)


@functools.cache
def warn_of_unknown_divisor() -> None:
    """Warns once, on worker 0, of a loss function that returns one number for a batch."""
    if context.rank == 0:
        tf.compat.v1.logging.warning(
            "A loss function returns one number for a batch, so each worker's loss counts by its rows. This is right "
            "for a mean over the rows. If the function divides by something else, such as the values of a mask, return "
            "a loss for each row. Give the mask to Keras as a mask or as sample_weight (docs/promises.md, Where one "
            "worker and many differ)."
        )


@functools.cache
def _warn_of_other_batches(loss: str) -> None:
    if context.rank == 0:
        tf.compat.v1.logging.warning(
            "The loss '%s' counts by its weights or mask, and its step has batches of other iterators as well. Its "
            "gradients are weighted by the rows of all these batches. One worker would compute other gradients if "
            "the numbers of rows differ. Zip the datasets, and use one iterator (docs/promises.md, Where one worker "
            "and many differ).",
            loss,
        )


# The losses of a graph that count by their divisors, with the weights for which these make up.
_COUNTED = ("lockstep", "counted_losses")
_BY_WEIGHTS = (
    tf.compat.v1.losses.Reduction.MEAN,
    tf.compat.v1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS,
    tf.compat.v1.losses.Reduction.SUM_OVER_NONZERO_WEIGHTS,
)
_BY_NUMBER = tf.compat.v1.losses.Reduction.SUM_OVER_BATCH_SIZE


class _Losses(threading.local):
    """The loss of `tf.compat.v1.losses` that this thread is computing."""

    def __init__(self) -> None:
        self._counts = False

    def compute(
        self,
        compute_weighted_loss: Callable[..., Any],
        losses: Any,
        weights: Any = 1.0,
        scope: Any = None,
        loss_collection: Any = tf.compat.v1.GraphKeys.LOSSES,
        reduction: Any = tf.compat.v1.losses.Reduction.SUM_BY_NONZERO_WEIGHTS,
    ) -> Any:
        """Computes a loss; the divisor is the number of rows if the weight is one constant and no mask chose rows."""
        static = tf.get_static_value(weights) if tf.is_tensor(weights) else weights
        is_scalar = static is not None and not tf.convert_to_tensor(static).shape.rank
        by_weights = reduction in _BY_WEIGHTS and not is_scalar
        by_values = reduction in (*_BY_WEIGHTS, _BY_NUMBER) and row_weights.counts_other_than_rows(losses)
        self._counts = by_weights or by_values
        try:
            return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)
        finally:
            self._counts = False

    def mean(self, mean: Callable[..., Any], losses: Any, num_present: Any) -> Any:
        """Divides a sum of losses by a number, `tf.compat.v1.losses`' own function for this."""
        loss = mean(losses, num_present)
        return counting_by(num_present, loss, _weight_in_graph) if self._counts else loss


def _weight_in_graph(loss: tf.Tensor) -> tf.Tensor | None:
    found = None if tf.executing_eagerly() else row_weights.of([loss])
    if found is None:
        return None
    weight = tf.identity(found.weight, name="weight_of_loss")
    weight.graph.add_to_collection(_COUNTED, (loss, weight))
    return weight


def warn_of_other_batches(gradients: Sequence[Any]) -> None:
    """Warns once, on worker 0, of losses with divisors whose gradients are weighted by other batches than their own.

    Args:
      gradients: the gradients (tensors and `tf.IndexedSlices` of one graph) that are weighted by all batches behind
        them.
    """
    graphs = {gradient.graph for gradient in gradients if hasattr(gradient, "graph")}
    for graph in graphs:
        for loss, weight in graph.get_collection(_COUNTED):
            stem = row_weights.stem_from(gradients, weight.op)
            if stem and row_weights.differ([loss], gradients):
                _warn_of_other_batches(loss.name)
