"""Data parallelism: every worker applies the mean of all workers' gradients.

Each kind of variable has its own exchange:

- replicated, dense gradient: summed in buckets. The gradients are cut into `grad_nbuckets` runs of about equal size, in
  the order in which the backward pass produces them (the last layer first), so that a bucket travels while the rest of
  the backward pass still computes.
- replicated, `tf.IndexedSlices`: the slices of all workers are gathered, in rank order; the dense form is never built.
- sharded: the lookup's own gradient is the mean, at the owner of the rows, already. Nothing is left to do.

All three give the mean over workers, each weighed by its rows (`row_weights.py`), so that R workers compute what one
computes with the batches of all and a loss that is a mean over the batch. What is computed from a mean may be exchanged
a second time (a gradient that was accumulated in a variable cannot be told from one that never was exchanged): the mean
of equal values is that value.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered, wire
from lockstep._src.engine.context import context
from lockstep._src.graph import alike, ancestry, row_weights
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.replicas import replicated
from lockstep._src.tables import sharded

Gradient = tf.Tensor | tf.IndexedSlices | None
GradientsAndVariables = list[tuple[Gradient, tf.Variable]]

# The operations that hold gradients of all workers, per graph: what is computed from them (clipping, say) is not
# exchanged again.
_EXCHANGED = "lockstep/exchanged_gradients"


class _Exchanges(threading.local):
    """How many times this thread has exchanged gradients: tells a caller whether something it called did."""

    count = 0


_exchanges = _Exchanges()


def exchange(grads_and_vars: Sequence[tuple[Gradient, tf.Variable]], buckets: int) -> GradientsAndVariables:
    """Replaces each gradient by its mean over all workers.

    Args:
      grads_and_vars: pairs of this worker's gradient (or None, which stays None on every worker) and its variable, in
        the order of the forward pass, the same on every worker.
      buckets: into how many exchanges the dense gradients are cut, at least 1; may be more than there are gradients.

    Returns:
      The pairs in the same order.
    """
    world = context.world_size
    if world == 1:
        return list(grads_and_vars)
    result: list[Gradient] = [gradient for gradient, _ in grads_and_vars]
    dense: list[int] = []
    with tf.name_scope("lockstep_gradients"):
        local = [i for i, (g, v) in enumerate(grads_and_vars) if g is not None and not sharded.is_sharded(v)]
        weight = row_weights.of(result[i] for i in local)
        for i in local:
            if weight is not None:
                result[i] = weight.times(result[i])
            if isinstance(result[i], tf.IndexedSlices):
                result[i] = _gather_slices(result[i], grads_and_vars[i][1], world)
            else:
                dense.append(i)
        for number, bucket in enumerate(_cut_into_buckets(dense, result, buckets)):
            reduced = _reduce_bucket([result[i] for i in bucket], number)
            for i, tensor in zip(bucket, reduced, strict=True):
                result[i] = tensor
    for gradient in result:
        remember(gradient)
    return [(gradient, variable) for gradient, (_, variable) in zip(result, grads_and_vars, strict=True)]


def _reduce_bucket(tensors: list[tf.Tensor], number: int) -> list[tf.Tensor]:
    on_wire = [wire.to_wire(tensor, wire.gradient_dtype()) for tensor in tensors]
    reduced = ordered.allreduce(
        on_wire, op="mean", name=f"bucket_{number:03d}", priority=ordered.Priority.BUCKET + number
    )
    return [tf.cast(after, before.dtype) for after, before in zip(reduced, tensors, strict=True)]


def _gather_slices(gradient: tf.IndexedSlices, variable: tf.Variable, world: int) -> tf.IndexedSlices:
    name = variable.name.split(":")[0].replace("/", "_")
    priority = ordered.Priority.SLICES
    values = wire.to_wire(gradient.values, wire.gradient_dtype())
    values = ordered.allgather(values, name=f"{name}_values", priority=priority)
    values = tf.cast(values, gradient.values.dtype)
    indices = ordered.allgather(gradient.indices, name=f"{name}_indices", priority=priority)
    return tf.IndexedSlices(values * tf.cast(1.0 / world, values.dtype), indices, gradient.dense_shape)


def _cut_into_buckets(dense: list[int], gradients: Sequence[Gradient], buckets: int) -> list[list[int]]:
    """Runs of about equal bytes, in backward order; a bucket holds one type, since it is reduced as one."""
    by_type: dict[tf.DType, list[int]] = {}
    for i in reversed(dense):
        by_type.setdefault(gradients[i].dtype, []).append(i)
    result: list[list[int]] = []
    for indices in by_type.values():
        sizes = [_bytes(gradients[i]) for i in indices]
        limit = sum(sizes) / buckets
        run: list[int] = []
        filled = 0.0
        made = 0
        for i, size in zip(indices, sizes, strict=True):
            # A gradient belongs to the bucket in which its middle lies.
            if run and filled + size / 2 > limit * (made + 1):
                result.append(run)
                run = []
                made += 1
            run.append(i)
            filled += size
        if run:
            result.append(run)
    # Ready when the earliest layer in it is: those of several types take turns.
    return sorted(result, key=min, reverse=True)


def _bytes(tensor: tf.Tensor) -> int:
    # A gradient of unknown shape counts as one element: it only shifts where buckets are cut, the same on every worker.
    return (tensor.shape.num_elements() or 1) * tensor.dtype.size


def remember(gradient: Gradient) -> None:
    """Notes that a tensor is the same on all workers, by an exchange."""
    if gradient is None or tf.executing_eagerly():
        return
    tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if getattr(tensor, "op", None) is not None:
        tf.compat.v1.add_to_collection(_EXCHANGED, tensor.op)
        alike.note(tensor)


def stems_from_exchange(gradient: Gradient, unrelated: set[Any]) -> bool:
    """Whether a gradient is computed from what was exchanged. `unrelated` keeps what is known not to be."""
    tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if not hasattr(tensor, "op"):
        return False
    exchanged = functools.cache(lambda graph: frozenset(graph.get_collection(_EXCHANGED)))
    return ancestry.stems_from(tensor.op, lambda op: op in exchanged(op.graph), unrelated)


def _exchange_what_is_local(grads_and_vars: Sequence[tuple[Gradient, tf.Variable]]) -> GradientsAndVariables:
    pairs = list(grads_and_vars)
    if tf.executing_eagerly() or context.world_size == 1:
        return pairs
    unrelated: set[Any] = set()
    local = [i for i, (g, _) in enumerate(pairs) if g is not None and not stems_from_exchange(g, unrelated)]
    exchanged = exchange([pairs[i] for i in local], context.options.grad_nbuckets)
    for i, pair in zip(local, exchanged, strict=True):
        pairs[i] = pair
    return pairs


def _wrap_compute(compute_gradients: Callable[..., Any]) -> Callable[..., Any]:
    """`compute_gradients` that returns the mean over workers, unless the optimizer leaves that to `apply_gradients`.

    Of nested ones (a subclass that calls its base, an optimizer that wraps another) the innermost exchanges, so that
    what the outer ones do with the gradients, clipping for instance, sees the mean.
    """

    @functools.wraps(compute_gradients)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _exchanges.count
        grads_and_vars = compute_gradients(self, *args, **kwargs)
        if _exchanges.count != before or _is_lazy(self):
            return grads_and_vars
        _exchanges.count += 1
        return exchange(grads_and_vars, context.options.grad_nbuckets)

    wrapped._lockstep = True  # type: ignore[attr-defined]
    return wrapped


def _wrap_apply(apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    """`apply_gradients` that exchanges what came from elsewhere than `compute_gradients`, tf.gradients for instance."""

    @functools.wraps(apply_gradients)
    def wrapped(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        applied = apply_gradients(self, _exchange_what_is_local(grads_and_vars), *args, **kwargs)
        replicated.begin_alike()
        return applied

    wrapped._lockstep = True  # type: ignore[attr-defined]
    return wrapped


def _is_lazy(optimizer: Any) -> bool:
    """Whether an optimizer exchanges in `apply_gradients` alone: as when it was made, if that was in a scope."""
    return getattr(optimizer, "_lockstep_lazy", context.options.grad_lazy_sync)


def _wrap_once(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda function: function if getattr(function, "_lockstep", False) else wrap(function)


_WRAPS = {"compute_gradients": _wrap_once(_wrap_compute), "apply_gradients": _wrap_once(_wrap_apply)}


def intercept_optimizers(interception: Interception) -> None:
    """Makes every `tf.compat.v1.train.Optimizer` exchange its gradients while the interception lasts.

    Classes that exist are wrapped where they define `compute_gradients` or `apply_gradients` themselves, classes that
    are defined later as they are defined. An optimizer that is made while it lasts keeps exchanging after it.
    """
    wraps = _WRAPS
    interception.replace(symbols.COMPUTE_GRADIENTS, wraps["compute_gradients"])
    interception.replace(symbols.APPLY_GRADIENTS, wraps["apply_gradients"])

    def init_subclass(previous: Any) -> Any:
        def wrap_new(cls: type, **kwargs: Any) -> None:
            previous(**kwargs)
            for name, wrap in wraps.items():
                if name in vars(cls):
                    interception.replace_attribute(cls, name, wrap)

        return classmethod(wrap_new)

    interception.replace(symbols.OPTIMIZER_SUBCLASS, init_subclass)

    def init(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.__dict__.setdefault("_lockstep_lazy", context.options.grad_lazy_sync)
            for name in wraps:
                # Bound to this object: it stays when the class gets its own back.
                setattr(self, name, getattr(self, name))

        return wrapped

    interception.replace(symbols.OPTIMIZER_INIT, init)


def exchange_in(optimizer: type, lazy: bool | None = None) -> None:
    """Makes a class of optimizers exchange its gradients for good, in a scope or not.

    Args:
      optimizer: a subclass of `tf.compat.v1.train.Optimizer`, which is changed.
      lazy: whether in `apply_gradients` alone; None: as `grad_lazy_sync` is when gradients are computed.
    """
    for name, wrap in _WRAPS.items():
        setattr(optimizer, name, wrap(getattr(optimizer, name)))
    if lazy is not None:
        optimizer._lockstep_lazy = lazy
