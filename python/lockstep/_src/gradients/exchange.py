"""The exchange of gradients: dense ones are reduced, slices gathered, and gradients of local variables scaled.

It runs on either lane (`collectives/lanes.py`). In a graph each bucket or group is sent as soon as its gradients are
computed, during the rest of the backward pass. Eagerly all gradients of one type go in one call.

`tf.IndexedSlices` are gathered in rank order; they are made dense only if the settings ask for it. Gradients of local
variables stay on this rank. Sharded and dynamic tables are local on either lane: the gradient of a lookup is already
the gradient of all ranks, at the owner of the rows. It is the mean, or a sum, which is divided here if the reduction is
a mean.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.collectives.lanes import Lane, NamedLane, OrderedLane
from lockstep._src.collectives.slices import values_of, with_values
from lockstep._src.engine import host_memory
from lockstep._src.gradients import grouping, loss_divisors, provenance
from lockstep._src.gradients.agreed_variables import Gradient, described
from lockstep._src.gradients.graphs import after
from lockstep._src.gradients.provenance import Origin
from lockstep._src.gradients.settings import Exchange
from lockstep._src.gradients.variable_sets import LocalVariableSet, VariableSet, gradient_is_sum
from lockstep._src.graph import row_weights
from lockstep._src.tables import sharded
from lockstep._src.tables.sharded import is_table

# Reductions whose result for equal values is this value, so that results may be reduced again.
_IDEMPOTENT = ("mean", "min", "max", "adasum")


class _Stays(Protocol):
    def among(self, variables: Sequence[Any]) -> list[bool]:
        """Returns for each variable whether its gradient stays on this rank."""


class GradientExchange:
    """Exchanges the gradients of one optimizer or tape, or of all optimizers of a scope.

    Args:
      how: the settings.
      name: the names of exchanges begin with it.
      local: the variables whose gradients stay on this rank; by default those that are added to the attribute.

    Attributes:
      skips_steps: whether a step is skipped if a gradient is not finite. Then all ranks skip it, even if the gradient
        belongs to a variable of one rank.
      local: the variables whose gradients stay on this rank.
      order: returns all variables that may have gradients, in an order that is the same on all ranks apart from local
        variables; None if it isn't known.
      lane: the lane on which gradients are sent.
    """

    def __init__(self, how: Exchange, name: str, local: _Stays | None = None) -> None:
        self.how = how
        self.name = name
        self.skips_steps = False
        self.local: Any = LocalVariableSet() if local is None else local
        self.order: Callable[[], Sequence[Any] | None] = lambda: None
        self.lane: Lane = OrderedLane() if how.ranks is None else NamedLane(how.ranks)

    def exchange(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        which: Sequence[int] | None = None,
        generic_names: bool = False,
    ) -> list[Gradient]:
        """Exchanges all gradients except the ones of local variables.

        Args:
          gradients: the gradients of this rank; None stays None. They are in the order of the forward pass, the same on
            all ranks.
          variables: one for each gradient.
          which: the places of the gradients to exchange; others are returned unchanged. None: all.
          generic_names: whether names are "grad_0", "grad_1", ..., without the scope and this exchange's name.

        Returns:
          The gradients to apply, in the same order.

        Raises:
          NotImplementedError: there are slices or tables, and the reduction is neither "mean" nor "sum"; or the named
            lane is used in XLA.
          ValueError: no job exists, or it has no such ranks; or there are tables, and some ranks don't exchange.
          tf.errors.FailedPreconditionError: ranks have gradients of different variables. All ranks raise this error; in
            a graph when it runs.
        """
        how, lane = self.how, self.lane
        if gradients and which is not None and not which:
            return list(gradients)
        if lane.is_alone():
            return self._seen(gradients, variables)
        lane.check(self.name)
        places = range(len(gradients)) if which is None else which
        given, of = [gradients[i] for i in places], [variables[i] for i in places]
        result = list(given)
        if how.sparse_as_dense:
            result = [g if is_table(v) else _dense(g) for g, v in zip(given, of, strict=True)]
        self._check_tables(of)
        are_local = self.local.among(of)
        local = [i for i, is_local in enumerate(are_local) if result[i] is not None and is_local]
        shared = [i for i, is_local in enumerate(are_local) if result[i] is not None and not is_local]
        scope = lane.scope_of(self.name)
        with tf.name_scope(scope):
            if lane.takes_part():
                weight = self._weigh(result, local, shared)
                begin = "" if generic_names else scope
                names = {i: lane.name_of(begin, of[i], n) for n, i in enumerate(shared)}
                buckets = itertools.count()
                # Ranks agree before any gradient is sent, so that none waits forever; in a graph in the forward pass.
                with after(lane.agree(lambda: described(result, of, self.order(), self.local), begin)):
                    for group in self._groups(shared, result, of):
                        together, called = [result[i] for i in group], [names[i] for i in group]
                        has_slices = isinstance(together[0], tf.IndexedSlices)
                        with _on(how.device_sparse if has_slices else how.device_dense, of[group[0]]):
                            if has_slices:
                                _put(result, group, self._gathered(together, called))
                                continue
                            travelling, contexts = self._compressed(together)
                            bucket, factor = next(buckets), how.predivide_factor
                            reduced = lane.allreduce(travelling, called, how.reduction, bucket, factor)
                            _put(result, group, self._decompressed(reduced, contexts))
                if weight is not None:
                    _put(result, shared, [weight.weighted_back(result[i]) for i in shared])
            self._scale(result, [i for i in local if self._is_scaled(of[i])])
            # Only new tensors are marked. A gradient that is returned unchanged may also belong to another variable,
            # which is not exchanged yet.
            result = [_copy(g) if g is mine else g for g, mine in zip(result, given, strict=True)]
            result = self._seen(result, of)
        provenance.mark([result[i] for i in shared], is_alike=lane.reaches_all)
        provenance.mark([result[i] for i in local])
        everything = list(gradients)
        _put(everything, places, result)
        return everything

    def unexchanged(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], trusted: VariableSet | None = None
    ) -> list[int]:
        """Returns the places of gradients that must be exchanged, according to what is known about their origin.

        Args:
          gradients: gradients of this rank, or exchanged ones.
          variables: one for each gradient.
          trusted: variables whose eager gradients were exchanged, even if they have been changed since.

        Returns:
          The places of gradients that are not exchanged yet, and of those that are None, which ranks must have in
          common. Empty if all gradients have been exchanged.

        Raises:
          ValueError: it is not known whether a gradient was exchanged, and a second exchange would change it.
        """
        unrelated: set[Any] = set()
        fresh = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            origin = provenance.origin(gradient, unrelated)
            if origin is Origin.EXCHANGED:
                continue
            may_repeat = self._may_repeat(variable) and self.how.passes == 1
            # The returned gradient may have been dropped, and this one be of another step: exchange it again.
            if trusted is not None and tf.executing_eagerly() and variable in trusted and not may_repeat:
                continue
            if not may_repeat and (origin is Origin.MIXED or variable in provenance.delivered_by_tapes):
                raise ValueError(
                    f"{self.name}: the gradient of {getattr(variable, 'name', variable)} may have been exchanged: it "
                    "was changed outside of a tf.function, or with values of this rank. A second exchange would be "
                    f"wrong ({self.how.reduction}): wrap the tape or the optimizer, not both"
                )
            fresh.append(i)
        missing = [i for i, gradient in enumerate(gradients) if gradient is None]
        return sorted([*fresh, *missing]) if fresh or len(missing) == len(gradients) else []

    def _seen(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        """Returns results as a program is to see them."""
        return sharded.seen(gradients, variables) if self.how.unique_rows else list(gradients)

    def _may_repeat(self, variable: Any) -> bool:
        if self.local.among([variable])[0]:
            return not self._is_scaled(variable)
        return self.how.reduction in _IDEMPOTENT

    def _is_scaled(self, local: Any) -> bool:
        """Returns whether the gradient of a local variable is divided by the number of ranks."""
        if not self.how.scale_local:
            return False
        return not is_table(local) or (self.how.reduction == "mean" and gradient_is_sum(local))

    def _check_tables(self, variables: Sequence[Any]) -> None:
        """Raises an error if the settings do not fit tables, whose gradients cover all ranks of the job."""
        table = next((v for v in variables if is_table(v)), None)
        if table is None or self.how.ranks is None:
            return
        begin = f"{self.name}: the gradient of table '{table.name}' already covers all ranks' losses"
        if self.how.reduction not in ("mean", "sum"):
            raise NotImplementedError(f"{begin}; got the reduction {self.how.reduction!r}, wanted 'mean' or 'sum'")
        if self.how.ranks.process_set_id != named.ALL:
            raise ValueError(f"{begin}; got {self.how.ranks}, wanted the process set of all ranks")

    def _weigh(
        self, result: list[Gradient], local: Sequence[int], shared: Sequence[int]
    ) -> row_weights.RowWeight | None:
        """Changes gradients before they are sent, if the settings or the optimizer require it; returns their weight."""
        if self.skips_steps and local:
            _make_others_skip([result[i] for i in local], shared, result)
        weight = row_weights.of(result[i] for i in shared) if self.how.weighs_rows else None
        if weight is not None:
            loss_divisors.warn_of_other_batches([result[i] for i in shared])
            _put(result, shared, [weight.times_gradient(result[i]) for i in shared])
        return weight

    def _scale(self, result: list[Gradient], scaled: Sequence[int]) -> None:
        """Divides gradients of local variables by the number of ranks."""
        if scaled:
            _put(result, scaled, self._divided([result[i] for i in scaled]))

    def _groups(self, shared: list[int], gradients: Sequence[Any], variables: Sequence[Any]) -> list[list[int]]:
        """Returns groups of places of gradients that are sent together: dense ones, or slices."""
        if self.how.buckets is not None:
            groups = grouping.in_buckets(shared, gradients, self.how.buckets)
        else:
            groups = grouping.in_groups(shared, gradients, variables, self.how.groups)
        return [part for group in groups for part in grouping.by_place(group, variables)]

    def _gathered(self, gradients: list[tf.IndexedSlices], names: list[str]) -> list[tf.IndexedSlices]:
        if self.how.reduction not in ("mean", "sum"):
            raise NotImplementedError(
                f"{self.name}: slices have no reduction {self.how.reduction!r}; sparse_as_dense makes them dense"
            )
        travelling, contexts = self._compressed([gradient.values for gradient in gradients])
        values = self._decompressed(self.lane.allgather(travelling, [f"{n}_values" for n in names]), contexts)
        indices = self.lane.allgather([gradient.indices for gradient in gradients], [f"{n}_indices" for n in names])
        all_slices = [
            tf.IndexedSlices(v, i, gradient.dense_shape)
            for v, i, gradient in zip(values, indices, gradients, strict=True)
        ]
        return all_slices if self.how.reduction == "sum" else self._divided(all_slices)

    def _divided(self, gradients: Sequence[Any]) -> list[Any]:
        divided = self.lane.divided([values_of(gradient) for gradient in gradients])
        return [with_values(gradient, values) for gradient, values in zip(gradients, divided, strict=True)]

    def _compressed(self, tensors: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[Any]]:
        compression = self.how.compression
        if compression is None:
            return tensors, [None] * len(tensors)
        pairs = [compression.compress(tensor) for tensor in tensors]
        return [tensor for tensor, _ in pairs], [context for _, context in pairs]

    def _decompressed(self, tensors: list[tf.Tensor], contexts: list[Any]) -> list[tf.Tensor]:
        compression = self.how.compression
        if compression is None:
            return tensors
        return [compression.decompress(tensor, c) for tensor, c in zip(tensors, contexts, strict=True)]


def _make_others_skip(local: Sequence[Any], shared: Sequence[int], result: list[Gradient]) -> None:
    """Adds NaN to one of the exchanged gradients if a local one is not finite."""
    exchanged: dict[int, Any] = {i: result[i] for i in shared}
    floating = [i for i, gradient in exchanged.items() if gradient.dtype.is_floating]
    dense = [i for i in floating if not isinstance(exchanged[i], tf.IndexedSlices)]
    for i in (dense or floating)[:1]:
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(values_of(g))) for g in local])
        gradient = exchanged[i]
        tell = tf.where(finite, tf.zeros([], gradient.dtype), tf.constant(float("nan"), gradient.dtype))
        result[i] = with_values(gradient, values_of(gradient) + tell)


@contextlib.contextmanager
def _on(device: str, variable: Any) -> Iterator[None]:
    """Places operations on a device; "": gradients of a variable in the host's memory stay there."""
    if device:
        place: contextlib.AbstractContextManager[Any] = tf.device(device)
    else:
        place = host_memory.on_host() if grouping.is_on_host(variable) else contextlib.nullcontext()
    with place:
        yield


def _put(gradients: list[Any], places: Sequence[int], values: Sequence[Any]) -> None:
    for i, value in zip(places, values, strict=True):
        gradients[i] = value


def _dense(gradient: Gradient) -> Gradient:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _copy(gradient: Gradient) -> Gradient:
    return None if gradient is None else with_values(gradient, tf.identity(values_of(gradient)))
