"""Gradients of the collectives of both lanes; imported with them.

Each gradient is the transpose of its op as a linear function of all ranks' inputs. For ops that are not linear, it is
the transpose of the derivative. Gradients are collectives themselves, on the lane of their op; `_Ordered` and `_Named`
make these calls. In the ordered lane only sums and means have a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.collectives.lanes import by_type
from lockstep._src.collectives.ordered import named_call
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops

Tensors = list[tf.Tensor]


def _text(op: tf.Operation, attribute: str) -> str:
    value = op.get_attr(attribute)
    return value.decode() if isinstance(value, bytes) else value


class _Ordered:
    """Collectives for the gradient of an op of the ordered lane.

    Attributes:
      tensors: the op's inputs that were sent.
      factors: the factors before and after a reduction.
    """

    factors = (1.0, 1.0)

    def __init__(self, op: tf.Operation, kind: str) -> None:
        self._op = op
        name = f"{_text(op, 'lockstep_name') or kind.lower()}_gradient"
        self._called = {"lockstep_priority": op.get_attr("lockstep_priority"), **named_call(name, kind)}
        self.tensors = list(op.inputs if kind in ("AllReduce", "Broadcast") else op.inputs[:1])

    def reduction(self) -> str:
        """Returns the op's reduction; raises LookupError if it has no gradient."""
        reduction = _text(self._op, "reduce_op")
        if reduction not in ("sum", "mean"):
            raise LookupError(
                f"{self._op.type}: no gradient is defined for the reduction {reduction!r}, only for sum and mean"
            )
        return reduction

    def given(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns gradients of outputs as tensors; None if there is nothing to exchange.

        The graph decides which outputs have a gradient, so they are the same on all ranks.
        """
        return [tf.convert_to_tensor(g) if g is not None and g.dtype.is_floating else None for g in gradients]

    def allreduce(self, tensors: Tensors, reduction: str, factors: tuple[float, float] = (1.0, 1.0)) -> Tensors:
        result: dict[int, tf.Tensor] = {}
        for places in by_type(tensors):
            reduced = ops.lockstep_all_reduce([tensors[i] for i in places], reduce_op=reduction, **self._called)
            result |= zip(places, reduced, strict=True)
        return [result[i] for i in range(len(tensors))]

    def own_rows_of_sums(self, tensors: Tensors) -> Tensors:
        """Returns the sum of the gradients of a gather, and of this sum only the rows that this rank gave."""
        counts = self._op.outputs[1]
        return [ops.lockstep_reduce_scatter(tensor, counts, reduce_op="sum", **self._called) for tensor in tensors]

    def allgather(self, tensors: Tensors) -> Tensors:
        return [ops.lockstep_all_gather(tensor, **self._called).gathered for tensor in tensors]

    def alltoall(self, tensors: Tensors) -> Tensors:
        splits = self._op.outputs[1]
        return [ops.lockstep_all_to_all(tensor, splits, **self._called).received for tensor in tensors]

    def at_root(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a value on the root; on other ranks zeros, which become ready at the same time as the value."""
        if context.rank == self._op.get_attr("root"):
            return value
        # A plain tf.zeros_like would become a constant, and `value` would be pruned.
        with tf.control_dependencies([value]):
            return tf.identity(tf.zeros_like(value))

    def divided(self, tensors: Tensors) -> Tensors:
        return [tensor / tf.cast(context.world_size, tensor.dtype) for tensor in tensors]

    def scaled(self, tensors: Tensors) -> Tensors:
        """Returns the tensors unchanged: gradients belong to the sum of all ranks' losses."""
        return tensors


class _Named:
    """Collectives for the gradient of an op of the named lane, with names of their own.

    Attributes:
      tensors: the op's inputs that were sent.
      factors: the factors before and after a reduction.
    """

    def __init__(self, op: tf.Operation, kind: str) -> None:
        self._op, self._group = op, op.get_attr("process_set")
        self.tensors = list(op.inputs[: len(op.get_attr("names"))])
        self.factors = (1.0, 1.0)
        if kind in ("AllReduce", "ReduceScatter"):
            self.factors = (float(_text(op, "prescale")), float(_text(op, "postscale")))

    def reduction(self) -> str:
        return _text(self._op, "reduction")

    def names(self, what: str = "") -> list[str] | None:
        """Returns the tensors' names with a suffix for this gradient; None if the tensors have no names."""
        if self._op.get_attr("numbered"):
            return None
        names = self._op.get_attr("names")
        if self._op.get_attr("M"):
            names = self._op.inputs[len(self.tensors)].numpy().tolist()  # an eager call
        names = [name.decode() if isinstance(name, bytes) else name for name in names]
        return [f"{name}/gradient{what}" for name in names] if all(names) else None

    def given(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns gradients of outputs as tensors.

        Outputs without a gradient take part with zeros, because they may have one on other ranks. TensorFlow may have
        put zeros of another type there.
        """
        outputs = self._op.outputs[: len(gradients)]
        return [
            tf.zeros_like(output) if gradient is None else tf.cast(tf.convert_to_tensor(gradient), output.dtype)
            for output, gradient in zip(outputs, gradients, strict=True)
        ]

    def allreduce(
        self, tensors: Tensors, reduction: str, factors: tuple[float, float] = (1.0, 1.0), what: str = ""
    ) -> Tensors:
        names, (prescale, postscale) = self.names(what), factors
        return named.allreduce(
            tensors, reduction, names=names, group=self._group, prescale=prescale, postscale=postscale
        )

    def own_rows_of_sums(self, tensors: Tensors) -> Tensors:
        """Returns the sum of the gradients of a gather, and of this sum only the rows that this rank gave."""
        summed = self.allreduce(tensors, "sum")
        rows = [tf.shape(value, tf.int64)[:1] for value in self.tensors]
        rank, own = named.rank_in(self._group), []
        of_ranks = named.allgather(rows, names=self.names("/rows"), group=self._group)
        for value, counts in zip(summed, of_ranks, strict=True):
            begin = tf.reduce_sum(counts[:rank])
            own.append(value[begin : begin + counts[rank]])
        return own

    def allgather(self, tensors: Tensors) -> Tensors:
        return named.allgather(tensors, names=self.names(), group=self._group)

    def alltoall(self, tensors: Tensors) -> Tensors:
        """Returns rows to the ranks that sent them; rows after the splits, which were dropped, get zeros."""
        received = list(self._op.outputs[len(tensors) :])
        returned, _ = named.alltoall(tensors, received, names=self.names(), group=self._group)
        padded = []
        for value, source in zip(returned, self.tensors, strict=True):
            missing = tf.shape(source)[0] - tf.shape(value)[0]
            # The tensor's rank may be known only at run time.
            padded.append(tf.pad(value, tf.pad([[0, missing]], [[0, tf.rank(source) - 1], [0, 0]])))
        return padded

    def at_root(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a value on the root, and zeros on other ranks."""
        is_root = tf.equal(named.rank_in(self._group), self._op.get_attr("root"))
        return tf.where(is_root, value, tf.zeros_like(value))

    def divided(self, tensors: Tensors) -> Tensors:
        factor = 1 / named.size_of(self._group)
        return [tensor * tf.cast(factor, tensor.dtype) for tensor in tensors]

    def scaled(self, tensors: Tensors) -> Tensors:
        """Returns gradients for the op's argument `gradient`: of the sum or mean of losses, or times the ranks."""
        gradient = _text(self._op, "gradient")
        if gradient == "times":
            ranks = named.size_of(self._group)
            return [tensor * tf.cast(ranks, tensor.dtype) for tensor in tensors]
        return tensors if gradient == "sum" else self.divided(tensors)

    def others_product(self, i: int) -> tf.Tensor:
        """Returns the product of the other ranks' scaled values, computed from all values so that zeros are right."""
        names, own = self.names("/values"), self.tensors[i]
        own = own * tf.constant(self.factors[0], own.dtype)
        (values,) = named.allgather([own[tf.newaxis]], names=names and [names[i]], group=self._group)
        before = tf.math.cumprod(values, axis=0, exclusive=True)
        behind = tf.math.cumprod(values, axis=0, exclusive=True, reverse=True)
        return (before * behind)[named.rank_in(self._group)]


Lane = _Ordered | _Named


def _allreduce(lane: Lane, gradients: list[Any]) -> list[Any]:
    reduction, (before, behind) = lane.reduction(), lane.factors
    if reduction == "adasum":
        raise LookupError("allreduce: no gradient is defined for the reduction 'adasum'")
    linear = reduction if reduction in ("sum", "mean") else "sum"
    summed = lane.allreduce(gradients, linear, (behind, before))
    if linear == reduction:
        return summed
    assert isinstance(lane, _Named)
    if reduction == "product":
        # behind * (before * own) * the product of before * other: every other rank contributes its factor.
        return [s * lane.others_product(i) for i, s in enumerate(summed)]
    # Ranks with the extreme value share the gradient evenly, as in tf.reduce_max. A negative factor swaps min and max.
    if before < 0:
        reduction = {"min": "max", "max": "min"}[reduction]
    extremes = lane.allreduce(lane.tensors, reduction, what="/extreme")
    has_it = [tf.cast(tf.equal(x, e), x.dtype) for x, e in zip(lane.tensors, extremes, strict=True)]
    ranks_with_it = lane.allreduce(has_it, "sum", what="/ties")
    return [s * h / n for s, h, n in zip(summed, has_it, ranks_with_it, strict=True)]


def _reducescatter(lane: Lane, gradients: list[Any]) -> list[Any]:
    reduction, factor = lane.reduction(), lane.factors[0] * lane.factors[1]
    if reduction not in ("sum", "mean"):
        raise LookupError(f"reducescatter: no gradient is defined for the reduction {reduction!r}")
    gathered = lane.allgather(gradients)
    if factor != 1:
        gathered = [value * tf.constant(factor, value.dtype) for value in gathered]
    return lane.scaled(lane.divided(gathered) if reduction == "mean" else gathered)


def _broadcast(lane: Lane, gradients: list[Any]) -> list[Any]:
    # Every rank takes part in the sum, but only the root's input affects the result.
    there = [i for i, gradient in enumerate(gradients) if gradient is not None]
    summed = lane.scaled([lane.at_root(s) for s in lane.allreduce([gradients[i] for i in there], "sum")])
    return [summed[there.index(i)] if i in there else None for i in range(len(gradients))]


_TRANSPOSES = {
    "AllReduce": _allreduce,
    "ReduceScatter": _reducescatter,
    "AllGather": lambda lane, gradients: lane.scaled(lane.own_rows_of_sums(gradients)),
    "AllToAll": lambda lane, gradients: lane.alltoall(gradients),
    "Broadcast": _broadcast,
}


def _register(kind: str, operation: str, lane_of: type[Lane]) -> None:
    @tf.RegisterGradient(operation)
    def gradient(op: tf.Operation, *gradients: Any) -> list[Any]:
        lane = lane_of(op, kind)
        # After the tensors there are counts, splits and names, which have no gradients.
        found = _TRANSPOSES[kind](lane, lane.given(gradients[: len(lane.tensors)]))
        return [*found, *[None] * (len(op.inputs) - len(found))]


for _kind in _TRANSPOSES:
    _register(_kind, f"Lockstep{_kind}", _Ordered)
    _register(_kind, f"LockstepNamed{_kind}", _Named)
for _op_type in ("LockstepBarrier", "LockstepAgreeOnNext"):
    tf.no_gradient(_op_type)
