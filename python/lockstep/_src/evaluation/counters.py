"""Counters of TensorFlow's own metrics, of which each worker counts its own data."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context


def combine_counters(variables: Iterable[tf.Variable]) -> tf.Operation:
    """An operation that leaves the sum over workers in each counter, on every worker.

    Counters of `tf.compat.v1.metrics` are declared to be sums over replicas (`VariableAggregation.SUM`). Those of this
    library's metrics are not: they hold the sum of all workers already. It is run once, when a worker has counted all
    of its data; a second time would sum sums.

    Args:
      variables: local variables of the default graph, in the same order on every worker; others than counters are left.
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
