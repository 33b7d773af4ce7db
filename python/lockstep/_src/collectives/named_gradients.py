"""Gradients of the collectives of `named`; imported with them.

Each is the transpose of its op over the vector of all ranks' inputs, or what calculus says where the op is not linear,
times what the op's `gradient` says. They are collectives themselves, under names of their own.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.collectives import named


def _text(op: tf.Operation, attribute: str) -> str:
    value = op.get_attr(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _factor(op: tf.Operation, attribute: str) -> float:
    return float(_text(op, attribute))


def _count(op: tf.Operation) -> int:
    return len(op.get_attr("names"))


def _tensors(op: tf.Operation) -> list[tf.Tensor]:
    return list(op.inputs[: _count(op)])


def _names(op: tf.Operation) -> list[str] | None:
    if op.get_attr("numbered"):
        return None
    names = op.get_attr("names")
    if op.get_attr("M"):
        names = op.inputs[_count(op)].numpy().tolist()  # an eager call
    names = [name.decode() if isinstance(name, bytes) else name for name in names]
    return [f"{name}/gradient" for name in names] if all(names) else None


def _of_all(op: tf.Operation, gradients: list[tf.Tensor]) -> list[tf.Tensor | None]:
    """Gradients of the tensors, and none of what stands behind them among the inputs."""
    return [*gradients, *[None] * (len(op.inputs) - len(gradients))]


def _dense(op: tf.Operation, gradients: tuple[Any, ...]) -> list[tf.Tensor]:
    # Which outputs have a gradient is a matter of the graph: those without one take part with zeros, for which
    # TensorFlow may have put some of another type.
    outputs = op.outputs[: len(gradients)]
    return [
        tf.zeros_like(output) if gradient is None else tf.cast(tf.convert_to_tensor(gradient), output.dtype)
        for output, gradient in zip(outputs, gradients, strict=True)
    ]


def _ranks(group: int) -> tf.Tensor:
    return named.size_of(group)


def _scaled(values: list[tf.Tensor], gradient: str, group: int) -> list[tf.Tensor]:
    if gradient == "sum":
        return values
    ranks = _ranks(group)
    factor = ranks if gradient == "times" else 1 / ranks
    return [value * tf.cast(factor, value.dtype) for value in values]


@tf.RegisterGradient("LockstepNamedAllReduce")
def _allreduce_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    reduction, group = _text(op, "reduction"), op.get_attr("process_set")
    before, behind = _factor(op, "prescale"), _factor(op, "postscale")
    given = _dense(op, gradients)
    if reduction in ("sum", "mean"):
        factors = {"prescale": behind, "postscale": before}
        return _of_all(op, named.allreduce(given, reduction, names=_names(op), group=group, **factors))
    if reduction == "adasum":
        raise LookupError("allreduce: no gradient is defined for the reduction 'adasum'")
    factors = {"prescale": behind, "postscale": before}
    summed = named.allreduce(given, "sum", names=_names(op), group=group, **factors)
    inputs = _tensors(op)
    if reduction == "product":
        # behind * (before * own) * the product of before * other: each of the others brings its factor again.
        return _of_all(op, [s * _others_product(op, i, x) for i, (s, x) in enumerate(zip(summed, inputs, strict=True))])
    # Ranks that have the extreme value share it evenly, as in tf.reduce_max. A negative factor turns the order round.
    if before < 0:
        reduction = {"min": "max", "max": "min"}[reduction]
    extremes = named.allreduce(inputs, reduction, names=_more_names(op, "extreme"), group=group)
    has_it = [tf.cast(tf.equal(x, e), x.dtype) for x, e in zip(inputs, extremes, strict=True)]
    ranks_with_it = named.allreduce(has_it, "sum", names=_more_names(op, "ties"), group=group)
    return _of_all(op, [s * h / n for s, h, n in zip(summed, has_it, ranks_with_it, strict=True)])


def _more_names(op: tf.Operation, what: str) -> list[str] | None:
    names = _names(op)
    return names and [f"{name}/{what}" for name in names]


def _others_product(op: tf.Operation, i: int, own: tf.Tensor) -> tf.Tensor:
    """The product of the other ranks' scaled values, also where some are zero: of all, gathered."""
    group = op.get_attr("process_set")
    names = _more_names(op, "values")
    own = own * tf.constant(_factor(op, "prescale"), own.dtype)
    (values,) = named.allgather([own[tf.newaxis]], names=names and [names[i]], group=group)
    before = tf.math.cumprod(values, axis=0, exclusive=True)
    behind = tf.math.cumprod(values, axis=0, exclusive=True, reverse=True)
    return (before * behind)[named.rank_in(group)]


@tf.RegisterGradient("LockstepNamedReduceScatter")
def _reducescatter_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    reduction, group = _text(op, "reduction"), op.get_attr("process_set")
    if reduction not in ("sum", "mean"):
        raise LookupError(f"reducescatter: no gradient is defined for the reduction {reduction!r}")
    gathered = named.allgather(_dense(op, gradients), names=_names(op), group=group)
    factor = _factor(op, "prescale") * _factor(op, "postscale")
    gathered = [value * tf.constant(factor, value.dtype) for value in gathered]
    if reduction == "mean":
        gathered = _scaled(gathered, "mean", group)
    return _of_all(op, _scaled(gathered, _text(op, "gradient"), group))


@tf.RegisterGradient("LockstepNamedAllGather")
def _allgather_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    group = op.get_attr("process_set")
    summed = named.allreduce(_dense(op, gradients), "sum", names=_names(op), group=group)
    rows = [tf.shape(value, tf.int64)[:1] for value in _tensors(op)]
    names = _more_names(op, "rows")
    of_ranks = named.allgather(rows, names=names, group=group)
    rank = named.rank_in(group)
    own = []
    for value, counts in zip(summed, of_ranks, strict=True):
        begin = tf.reduce_sum(counts[:rank])
        own.append(value[begin : begin + counts[rank]])
    return _of_all(op, _scaled(own, _text(op, "gradient"), group))


@tf.RegisterGradient("LockstepNamedBroadcast")
def _broadcast_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    group = op.get_attr("process_set")
    summed = named.allreduce(_dense(op, gradients), "sum", names=_names(op), group=group)
    # Every rank takes part in the sum; only the root's input had a part in the result.
    is_root = tf.equal(named.rank_in(group), op.get_attr("root"))
    kept = [tf.where(is_root, value, tf.zeros_like(value)) for value in summed]
    return _of_all(op, _scaled(kept, _text(op, "gradient"), group))


@tf.RegisterGradient("LockstepNamedAllToAll")
def _alltoall_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    count = len(gradients) // 2
    group = op.get_attr("process_set")
    given, received = _dense(op, gradients[:count]), list(op.outputs[count:])
    returned, _ = named.alltoall(given, received, names=_names(op), group=group)
    # Rows behind the splits were dropped.
    padded = []
    for value, source in zip(returned, _tensors(op), strict=True):
        missing = tf.shape(source)[0] - tf.shape(value)[0]
        # The rank may be known only when it runs.
        padded.append(tf.pad(value, tf.pad([[0, missing]], [[0, tf.rank(source) - 1], [0, 0]])))
    return _of_all(op, padded)
