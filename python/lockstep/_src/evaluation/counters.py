"""Counters of TensorFlow's own metrics, which count the data of one worker only."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context


def combine_counters(variables: Iterable[tf.Variable]) -> tf.Operation:
    """Returns an operation that replaces each counter, on every worker, by its sum over all workers.

    Counters of `tf.compat.v1.metrics` are declared as sums over replicas (`VariableAggregation.SUM`). Counters of this
    library's metrics are not, because they already hold the sum of all workers. Run the operation once, after all data
    has been counted; a second run would sum the sums again.

    Args:
      variables: local variables of the default graph, in the same order on every worker. Variables that are not such
        counters stay unchanged.
    """
    summed = tf.VariableAggregation.SUM
    counters = [] if context.world_size == 1 else [v for v in variables if v.aggregation.value == summed.value]
    by_type: dict[tf.DType, list[tf.Variable]] = {}
    for counter in counters:
        by_type.setdefault(counter.dtype.base_dtype, []).append(counter)
    assigned = []
    with tf.name_scope("combine_counters"):
        for dtype, group in by_type.items():
            sums = ordered.allreduce([v.read_value() for v in group], op="sum", name=f"counters_{dtype.name}")
            assigned += [v.assign(value).op for v, value in zip(group, sums, strict=True)]
        return tf.group(*assigned)
