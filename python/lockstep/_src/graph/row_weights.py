"""How much each worker's part of a step counts: as much as it has rows of the step's batch.

A worker whose batch is shorter (the last of its data, or an empty one) computes means over fewer rows. For the job's
mean to be that over all rows of the step, its gradients weigh n_r * R / n, where n_r are its rows, n those of all R
workers. With as many rows on each worker that is 1. A worker without rows weighs 0, and what it computed, NaN be it,
takes no part: `multiply_no_nan`.

Batches are those of iterators that are made in a scope for training (`data/sync.py`). What stems from several of them
weighs by the sum of their rows; what stems from none, such as what is fed, weighs 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.graph import ancestry

# The batches of a graph. A collection whose key is no string stays out of exported graphs.
_BATCHES = ("lockstep", "batches")


@dataclasses.dataclass(frozen=True)
class RowWeight:
    """What this worker's part of some batches counts.

    Attributes:
      rows: int64 scalar, this worker's rows.
      total: int64 scalar, those of all workers. Computing it is a collective.
    """

    rows: tf.Tensor
    total: tf.Tensor

    @property
    def weight(self) -> tf.Tensor:
        """float64 scalar; the mean of all workers' is 1."""
        total = tf.cast(tf.maximum(self.total, 1), tf.float64)
        return tf.cast(self.rows * context.world_size, tf.float64) / total

    def times(self, value: Any) -> Any:
        """A tensor or `tf.IndexedSlices` times the weight; zeros where that is 0, whatever `value` is."""
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self.times(value.values), value.indices, value.dense_shape)
        return tf.math.multiply_no_nan(value, tf.cast(self.weight, value.dtype))


@dataclasses.dataclass(frozen=True)
class _Batch:
    source: tf.Operation  # what all tensors of the batch are computed from
    weight: RowWeight
    tensors: tuple[tf.Tensor, ...]


def elements(of: Iterable[Any]) -> list[list[tf.Tensor]]:
    """What iterators gave, as flat tensors, of which `of` (tensors of one graph) are computed."""
    behind = list(ancestry.ancestors(of))
    found = [
        [part for output in op.outputs for part in _components(output)]
        for op in behind
        if op.type in ("IteratorGetNext", "IteratorGetNextSync")
    ]
    sources = set(behind)
    return found + [list(b.tensors) for b in tf.compat.v1.get_collection(_BATCHES) if b.source in sources]


def _components(output: tf.Tensor) -> list[tf.Tensor]:
    """An iterator's output; of a sparse tensor, which comes as one of type variant, what it is taken apart into."""
    parts = [list(op.outputs) for op in output.consumers() if op.type == "DeserializeSparse"]
    return parts[0] if output.dtype == tf.variant and parts else [output]


def note(element: Any, source: tf.Tensor) -> None:
    """Makes a batch count by its rows in what is computed from it.

    Args:
      element: of a dataset: a structure of tensors, whose rows are those of the first with a dimension. One without any
        counts as a row. Where the number of dimensions is not known, nothing is noted.
      source: of which each tensor of `element` is computed.
    """
    parts = list(_parts(element))
    ranks = [part.shape.rank for part in parts]
    if not parts or None in ranks:
        return
    batched = [part for part, rank in zip(parts, ranks, strict=True) if rank > 0]
    with tf.name_scope("rows_of_batch"):
        rows = _rows(batched[0]) if batched else tf.constant(1, tf.int64)
        # Pruned where no gradient asks for it.
        total = ordered.allreduce(rows, op="sum", name="total")
    tf.compat.v1.add_to_collection(
        _BATCHES, _Batch(source.op, RowWeight(rows, total), tuple(tf.nest.flatten(element, expand_composites=True)))
    )


def _parts(element: Any) -> Iterator[Any]:
    if hasattr(element, "to_ragged"):  # a column of lists as HybridBackend's programs know it (data/frames.py)
        yield element.to_ragged()
    elif isinstance(element, Mapping):
        for name in sorted(element):
            yield from _parts(element[name])
    elif isinstance(element, (tuple, list)):
        for item in element:
            yield from _parts(item)
    elif hasattr(element, "shape"):
        yield element


def _rows(part: Any) -> tf.Tensor:
    if isinstance(part, tf.RaggedTensor):
        return part.nrows(tf.int64)
    if isinstance(part, tf.SparseTensor):
        return part.dense_shape[0]
    return tf.shape(part, out_type=tf.int64)[0]


def of(values: Iterable[Any]) -> RowWeight | None:
    """The weight of what was computed from noted batches; None if nothing was.

    Args:
      values: tensors and `tf.IndexedSlices` of one graph, or of the body of one of its loops or branches; None is
        passed over.
    """
    ops = [v.values.op if isinstance(v, tf.IndexedSlices) else v.op for v in values if hasattr(v, "graph")]
    if not ops:
        return None
    graph = ops[0].graph
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    weights = [batch.weight for batch in graph.get_collection(_BATCHES) if _any_stems_from(ops, batch.source)]
    if len(weights) < 2:
        return weights[0] if weights else None
    return RowWeight(tf.add_n([w.rows for w in weights]), tf.add_n([w.total for w in weights]))


def _any_stems_from(ops: list[tf.Operation], source: tf.Operation) -> bool:
    unrelated: set[tf.Operation] = set()
    return any(ancestry.stems_from(op, lambda found: found is source, unrelated) for op in ops)


def weighted(value: Any) -> Any:
    """A gradient times the weight of the batches that it stems from."""
    weight = of([value])
    return value if weight is None else weight.times(value)
