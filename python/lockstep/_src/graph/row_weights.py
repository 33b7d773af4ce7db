"""Weights of the workers in a step: a worker's weight is proportional to its number of rows in the step's batch.

A worker with a shorter batch (the last batch of its data, or an empty one) computes means over fewer rows. The job's
mean must be the mean over all rows of the step. Therefore each worker's gradients are multiplied by n_r * R / n, where
n_r is the worker's number of rows, n the number of rows of all workers, and R the number of workers. If all workers
have the same number of rows, the weight is 1. A worker without rows has the weight 0. Its values do not count, even if
they are NaN, because of `multiply_no_nan`.

Batches come from iterators that are made in a scope for training (`data/sync.py`). A value that is computed from
several batches has the sum of their rows as its weight. A value that is computed from none, such as a fed one, has the
weight 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.collectives.slices import values_of, with_values
from lockstep._src.engine.context import context
from lockstep._src.graph import ancestry, gradient_scale

# The batches of a graph. A collection whose key is not a string stays out of exported graphs.
_BATCHES = ("lockstep", "batches")
# Operations whose result has the rows of an input that has the rows of a batch.
# fmt: off
_KEEP_ROWS = frozenset([
    "Abs", "Add", "AddV2", "BiasAdd", "Cast", "DivNoNan", "Equal", "Exp", "Greater", "GreaterEqual", "Identity",
    "Less", "LessEqual", "Log", "Log1p", "Maximum", "Minimum", "Mul", "Neg", "NotEqual", "Pow", "RealDiv", "Relu",
    "Select", "SelectV2", "Sigmoid", "SoftmaxCrossEntropyWithLogits", "Softplus",
    "SparseSoftmaxCrossEntropyWithLogits", "Sqrt", "Square", "SquaredDifference", "StopGradient", "Sub", "Tanh"
])
# fmt: on
# Operations whose result has the values of their first input in another shape.
_RESHAPE = ("ExpandDims", "Reshape", "Squeeze")


@dataclasses.dataclass(frozen=True)
class RowWeight:
    """The weight of this worker's part of one or several batches.

    Attributes:
      rows: int64 scalar, the number of this worker's rows.
      total: int64 scalar, the number of all workers' rows. Computing it is a collective.
    """

    rows: tf.Tensor
    total: tf.Tensor

    @property
    def weight(self) -> tf.Tensor:
        """The weight, a float64 scalar; the mean of all workers' weights is 1."""
        total = tf.cast(tf.maximum(self.total, 1), tf.float64)
        return tf.cast(self.rows * context.world_size, tf.float64) / total

    def times(self, value: Any) -> Any:
        """Returns a tensor or `tf.IndexedSlices` times the weight; zeros if the weight is 0, even for NaN."""
        values = tf.math.multiply_no_nan(values_of(value), tf.cast(self.weight, value.dtype))
        return with_values(value, values)

    def times_gradient(self, gradient: Any) -> Any:
        """Returns what `times` does, for a gradient that is exchanged next: see `gradient_scale`."""
        return gradient_scale.scaled(gradient, tf.cast(self.weight, gradient.dtype), omits_nan=True)

    def weighted_back(self, gradient: Any) -> Any:
        """Returns an exchanged gradient whose derivatives are weighted: see `gradient_scale`."""
        return gradient_scale.weighted_back(gradient, tf.cast(self.weight, gradient.dtype))


@dataclasses.dataclass(frozen=True)
class _Batch:
    source: tf.Operation  # all tensors of the batch are computed from it
    weight: RowWeight
    tensors: tuple[tf.Tensor, ...]
    dense: tuple[tf.Tensor, ...]  # its parts [rows, ...]


def elements(of: Iterable[Any]) -> list[list[tf.Tensor]]:
    """Returns, for each iterator's element from which tensors of `of` (of one graph) are computed, its flat tensors."""
    behind = list(ancestry.ancestors(of))
    found = [
        [part for output in op.outputs for part in _components(output)]
        for op in behind
        if op.type in ("IteratorGetNext", "IteratorGetNextSync")
    ]
    sources = set(behind)
    return found + [list(b.tensors) for b in tf.compat.v1.get_collection(_BATCHES) if b.source in sources]


def _components(output: tf.Tensor) -> list[tf.Tensor]:
    """Returns an iterator's output as flat tensors; a sparse tensor, which comes as a variant, as its three parts."""
    parts = [list(op.outputs) for op in output.consumers() if op.type == "DeserializeSparse"]
    return parts[0] if output.dtype == tf.variant and parts else [output]


def note(element: Any, source: tf.Tensor) -> None:
    """Registers a batch, so that everything computed from it is weighted by the batch's rows.

    Args:
      element: an element of a dataset, a structure of tensors. The size of the first tensor that has a dimension is the
        number of rows. An element of scalars only counts as one row. If the rank of a tensor is not known, the batch is
        not registered.
      source: a tensor from which each tensor of `element` is computed.
    """
    parts = list(_parts(element))
    ranks = [part.shape.rank for part in parts]
    if not parts or None in ranks:
        return
    batched = [part for part, rank in zip(parts, ranks, strict=True) if rank > 0]
    with tf.name_scope("rows_of_batch"):
        rows = _rows(batched[0]) if batched else tf.constant(1, tf.int64)
        # Grappler prunes this if no gradient needs it.
        total = ordered.allreduce(rows, op="sum", name="total")
    tensors = tuple(tf.nest.flatten(element, expand_composites=True))
    dense = tuple(part for part in batched if isinstance(part, tf.Tensor))
    tf.compat.v1.add_to_collection(_BATCHES, _Batch(source.op, RowWeight(rows, total), tensors, dense))


def counts_other_than_rows(values: tf.Tensor) -> bool:
    """Returns whether the number of values may be in another proportion to the rows of the batch behind them.

    A mask may have chosen some of the rows, for example. The result is False for values that stem from no batch, or
    whose shape is known while the graph is built.
    """
    if not hasattr(values, "graph") or values.shape.is_fully_defined():
        return False
    batches = _batches_behind([values.op])
    if not batches:
        return False
    if not _has_fixed_rows(values):
        return True
    of_rows = {id(tensor) for batch in batches for tensor in batch.dense}
    front, seen = [values], set()
    while front:
        tensor = front.pop()
        if id(tensor) in of_rows:
            return False
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        outer = ancestry.captured(tensor.op)
        if outer is not None:
            front.append(outer)
        elif tensor.op.type in _KEEP_ROWS:
            # The rows of an operand of lower rank would be broadcast along another dimension.
            reduces = tensor.op.type.endswith("WithLogits")
            front.extend(part for part in tensor.op.inputs if reduces or part.shape.rank == tensor.shape.rank)
        elif _keeps_values(tensor) or _slices_behind_rows(tensor.op):
            front.append(tensor.op.inputs[0])
    return True


def _keeps_values(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor has the values of another one in another shape, in a fixed proportion to the rows."""
    return tensor.op.type in _RESHAPE and _has_fixed_rows(tensor) and _has_fixed_rows(tensor.op.inputs[0])


def _slices_behind_rows(op: tf.Operation) -> bool:
    """Returns whether an operation is a slice whose first part is `:`, as in `x[:, 0]`."""
    if op.type != "StridedSlice":
        return False
    takes_all = all(op.get_attr(name) & 1 for name in ("begin_mask", "end_mask"))
    differs = any(op.get_attr(name) & 1 for name in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask"))
    strides = tf.get_static_value(op.inputs[3])
    return takes_all and not differs and strides is not None and abs(strides[0]) == 1


def _has_fixed_rows(tensor: tf.Tensor) -> bool:
    """Returns whether all rows of a tensor have one number of values, which is known while the graph is built."""
    return bool(tensor.shape.rank) and tensor.shape[1:].is_fully_defined()


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
    """Returns the weight of values that are computed from registered batches; None if they depend on none.

    Args:
      values: tensors and `tf.IndexedSlices` of one graph, or of the body of one of its loops or branches. None values
        are skipped.
    """
    weights = [batch.weight for batch in _batches_behind(_ops(values))]
    if len(weights) < 2:
        return weights[0] if weights else None
    return RowWeight(tf.add_n([w.rows for w in weights]), tf.add_n([w.total for w in weights]))


def differ(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """Returns whether two groups of values (see `of`) are computed from different batches."""
    of_a, of_b = ({id(batch) for batch in _batches_behind(_ops(values))} for values in (a, b))
    return of_a != of_b


def stem_from(values: Iterable[Any], source: tf.Operation) -> bool:
    """Returns whether one of the values (see `of`) is computed from the result of an operation."""
    return _any_stems_from(_ops(values), source)


def _ops(values: Iterable[Any]) -> list[tf.Operation]:
    return [v.values.op if isinstance(v, tf.IndexedSlices) else v.op for v in values if hasattr(v, "graph")]


def _batches_behind(ops: list[tf.Operation]) -> list[_Batch]:
    """Returns the registered batches from which operations of one graph are computed."""
    if not ops:
        return []
    graph = ops[0].graph
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return [batch for batch in graph.get_collection(_BATCHES) if _any_stems_from(ops, batch.source)]


def _any_stems_from(ops: list[tf.Operation], source: tf.Operation) -> bool:
    unrelated: set[tf.Operation] = set()
    return any(ancestry.stems_from(op, lambda found: found is source, unrelated) for op in ops)


def weighted(value: Any) -> Any:
    """Returns a tensor times the weight of the batches from which it is computed."""
    weight = of([value])
    return value if weight is None else weight.times(value)


def weighted_gradient(gradient: Any) -> Any:
    """Returns a gradient that is exchanged next, times the weight of the batches from which it is computed."""
    weight = of([gradient])
    return gradient if weight is None else weight.times_gradient(gradient)
