"""Exchanges gradients: dense ones are reduced, slices gathered, those of local variables scaled.

By names (`named`), so that ranks may have other graphs, and other local variables. In a graph each gradient travels as
soon as it is there, beside the rest of the backward pass, small ones that are there together in one message; eagerly
all of one type in one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from lockstep._src.collectives import named
from lockstep._src.gradients import agreed_variables, provenance
from lockstep._src.gradients.agreed_variables import Gradient, called
from lockstep._src.gradients.exchange import Exchange
from lockstep._src.gradients.graphs import after
from lockstep._src.gradients.provenance import Origin
from lockstep._src.gradients.variable_sets import LocalOnes, Noted, delivered_by_tapes, key

# Of equal values they give this value: what was reduced before may be reduced again.
_IDEMPOTENT = ("mean", "min", "max", "adasum")


class Reducer:
    """Exchanges the gradients of one optimizer or tape.

    Args:
      exchange: how.
      name: begins the names of what it exchanges.

    Attributes:
      skips_steps: whether gradients are looked at before they are applied, and a step is skipped where one is not
        finite. Then all ranks see it, also where it is the gradient of a variable of one rank.
      local: variables whose gradients stay on this rank.
      order: gives all variables that there may be gradients of, in an order that ranks have in common but for local
        ones; None where it isn't known.
    """

    def __init__(self, exchange: Exchange, name: str) -> None:
        self.exchange = exchange
        self.name = name
        self.skips_steps = False
        self.local = LocalOnes()
        self.order: Callable[[], Sequence[Any] | None] = lambda: None

    def reduce(self, gradients: Sequence[Gradient], variables: Sequence[Any], generic: bool = False) -> list[Gradient]:
        """Exchanges gradients, those of local variables excepted.

        Args:
          gradients: of this rank; None stays None.
          variables: one for each.
          generic: names are "grad_0", "grad_1", ..., whatever the scope and this reducer's name.

        Returns:
          What is to be applied, in the same order.

        Raises:
          NotImplementedError: slices, and a reduction that is neither "mean" nor "sum"; XLA.
          ValueError: there is no job, or it doesn't have these ranks.
          tf.errors.FailedPreconditionError: ranks have gradients of different variables; on all of them, in a graph
            when it runs.
        """
        exchange = self.exchange
        _check_runs_outside_of_xla(self.name)
        if exchange.ranks.process_set_id is None:
            raise ValueError(f"{self.name}: {exchange.ranks} is not in use: the job doesn't have it, or not any more")
        result = [self._dense(gradient) for gradient in gradients]
        are_local = self.local.among(variables)
        local = [i for i, is_local in enumerate(are_local) if result[i] is not None and is_local]
        shared = [i for i, is_local in enumerate(are_local) if result[i] is not None and not is_local]
        prefix = agreed_variables.prefix_of(self.name)
        with tf.name_scope(f"{prefix}/"):
            if exchange.ranks.included():
                if self.skips_steps and local:
                    _make_others_skip([result[i] for i in local], shared, result)
                tensor_prefix = "" if generic else f"{prefix}/"
                names = {i: f"{tensor_prefix}grad_{n}" for n, i in enumerate(shared)}
                everyones = [i for i, is_local in enumerate(are_local) if not is_local]
                # Before any gradient travels, so that none is left waiting; in a graph beside the forward pass.
                with after(self._agree(everyones, result, variables, tensor_prefix)):
                    for group in self._groups(shared, variables):
                        self._reduce_group(group, result, names)
            if exchange.scale_local and local:
                ranks = self._ranks()
                for i in local:
                    result[i] = _divided(result[i], ranks)
            # What is marked is handed out here for the first time: a gradient that stays as it is may be another
            # variable's as well, which has to be exchanged still.
            result = [_own(g) if g is mine and g is not None else g for g, mine in zip(result, gradients, strict=True)]
        provenance.mark(result)
        return result

    def reduce_what_is_local(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], trusted: Noted | None = None
    ) -> list[Gradient]:
        """As `reduce`, of those that have not been exchanged yet.

        Args:
          gradients: of this rank, or exchanged.
          variables: one for each.
          trusted: eagerly, variables whose gradients were exchanged, whatever was done with them since.

        Raises:
          ValueError: it cannot be told, and it would make a difference.
        """
        result, fresh = list(gradients), self.unexchanged(gradients, variables, trusted)
        missing = [i for i, gradient in enumerate(gradients) if gradient is None]
        if fresh or len(missing) == len(result):
            # What this rank has no gradient of is part of what ranks have to have in common.
            places = sorted([*fresh, *missing])
            reduced = self.reduce([result[i] for i in places], [variables[i] for i in places])
            for i, gradient in zip(places, reduced, strict=True):
                result[i] = gradient
        return result

    def unexchanged(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], trusted: Noted | None = None
    ) -> list[int]:
        """Which gradients have to be exchanged; see `reduce_what_is_local`."""
        unrelated: set[Any] = set()
        fresh = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            origin = provenance.origin(gradient, unrelated)
            if origin is Origin.EXCHANGED:
                continue
            may_repeat = self._may_repeat(variable) and self.exchange.passes == 1
            # A gradient that was handed out may have been dropped, and be that of another step: it is repeated.
            if trusted is not None and tf.executing_eagerly() and variable in trusted and not may_repeat:
                continue
            if not may_repeat and (origin is Origin.MIXED or variable in delivered_by_tapes):
                raise ValueError(
                    f"{self.name}: the gradient of {getattr(variable, 'name', variable)} may have been exchanged: it "
                    "was changed outside of a tf.function, or with values of this rank. It cannot be told, and to "
                    f"exchange it twice is wrong ({self.exchange.reduction}): wrap the tape or the optimizer, not both"
                )
            fresh.append(i)
        return fresh

    def _may_repeat(self, variable: Any) -> bool:
        if self.local.among([variable])[0]:
            return not self.exchange.scale_local
        return self.exchange.reduction in _IDEMPOTENT

    def _dense(self, gradient: Gradient) -> Gradient:
        if self.exchange.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        return gradient

    def _agree(
        self, which: Sequence[int], gradients: Sequence[Gradient], variables: Sequence[Any], prefix: str
    ) -> list[Any]:
        their_variables = [variables[i] for i in which]
        places = agreed_variables.places(their_variables, self.order(), self.local)
        group = self.exchange.ranks.process_set_id
        return agreed_variables.agree([gradients[i] for i in which], their_variables, places, prefix, group)

    def _groups(self, shared: list[int], variables: Sequence[Any]) -> list[list[int]]:
        groups = self.exchange.groups
        if groups is None:
            # A call from Python costs more than to wait for what is there already.
            return [shared] if tf.executing_eagerly() else [[i] for i in shared]
        if isinstance(groups, int):
            number = min(groups, len(shared))
            bounds = [len(shared) * n // number for n in range(number + 1)] if number else [0]
            return [shared[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
        group_of = {key(v): n for n, group in enumerate(groups) for v in group}
        by_group: dict[Any, list[int]] = {}
        for i in shared:
            by_group.setdefault(group_of.get(key(variables[i]), ("alone", i)), []).append(i)
        return list(by_group.values())

    def _reduce_group(self, group: list[int], result: list[Gradient], names: dict[int, str]) -> None:
        slices = [i for i in group if isinstance(result[i], tf.IndexedSlices)]
        dense = [i for i in group if not isinstance(result[i], tf.IndexedSlices)]
        if dense:
            with _on(self.exchange.device_dense):
                reduced = self._allreduce([result[i] for i in dense], [names[i] for i in dense])
            for i, tensor in zip(dense, reduced, strict=True):
                result[i] = tensor
        if slices:
            with _on(self.exchange.device_sparse):
                gathered = self._gather([result[i] for i in slices], [names[i] for i in slices])
            for i, gradient in zip(slices, gathered, strict=True):
                result[i] = gradient

    def _allreduce(self, tensors: list[tf.Tensor], names: list[str]) -> list[tf.Tensor]:
        exchange = self.exchange
        travelling, contexts = self._compressed(tensors)
        reduced = _by_type(
            lambda some, their_names: named.allreduce(
                some,
                exchange.reduction,
                prescale=1 / exchange.predivide_factor,
                postscale=exchange.predivide_factor,
                **called(their_names),
                group=exchange.ranks.process_set_id,
            ),
            travelling,
            names,
        )
        return self._decompressed(reduced, contexts)

    def _gather(self, gradients: list[tf.IndexedSlices], names: list[str]) -> list[tf.IndexedSlices]:
        reduction, group = self.exchange.reduction, self.exchange.ranks.process_set_id
        if reduction not in ("mean", "sum"):
            raise NotImplementedError(
                f"{self.name}: slices have no reduction {reduction!r}; sparse_as_dense makes them dense"
            )

        def gather(tensors: list[tf.Tensor], their_names: list[str]) -> list[tf.Tensor]:
            return named.allgather(tensors, **called(their_names), group=group)

        travelling, contexts = self._compressed([gradient.values for gradient in gradients])
        values = self._decompressed(_by_type(gather, travelling, [f"{n}_values" for n in names]), contexts)
        indices = _by_type(gather, [gradient.indices for gradient in gradients], [f"{n}_indices" for n in names])
        all_slices = [
            tf.IndexedSlices(v, i, gradient.dense_shape)
            for v, i, gradient in zip(values, indices, gradients, strict=True)
        ]
        if reduction == "sum":
            return all_slices
        ranks = self._ranks()
        return [_divided(some, ranks) for some in all_slices]

    def _compressed(self, tensors: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[Any]]:
        compression = self.exchange.compression
        if compression is None:
            return tensors, [None] * len(tensors)
        pairs = [compression.compress(tensor) for tensor in tensors]
        return [tensor for tensor, _ in pairs], [context for _, context in pairs]

    def _decompressed(self, tensors: list[tf.Tensor], contexts: list[Any]) -> list[tf.Tensor]:
        compression = self.exchange.compression
        if compression is None:
            return tensors
        return [compression.decompress(tensor, c) for tensor, c in zip(tensors, contexts, strict=True)]

    def _ranks(self) -> Any:
        ranks = self.exchange.ranks
        # As it is when it runs, which an elastic job may change.
        return named.size_of(ranks.process_set_id) if ranks.included() else ranks.size()


def _check_runs_outside_of_xla(name: str) -> None:
    if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            f"{name}: XLA cannot compile the exchange of gradients; compile the model, or the tf.function, with "
            "jit_compile=False"
        )


def _make_others_skip(local: Sequence[Any], shared: Sequence[int], result: list[Gradient]) -> None:
    """Adds NaN to one of the gradients that are exchanged, where a local one is not finite."""
    floating = [i for i in shared if result[i].dtype.is_floating]
    dense = [i for i in floating if not isinstance(result[i], tf.IndexedSlices)]
    for i in (dense or floating)[:1]:
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(getattr(g, "values", g))) for g in local])
        tell = tf.where(finite, tf.zeros([], result[i].dtype), tf.constant(float("nan"), result[i].dtype))
        result[i] = _with_values(result[i], lambda values, tell=tell: values + tell)


@contextlib.contextmanager
def _on(device: str) -> Iterator[None]:
    with tf.device(device) if device else contextlib.nullcontext():
        yield


def _with_values(gradient: Any, change: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def _own(gradient: Any) -> Any:
    return _with_values(gradient, tf.identity)


def _divided(gradient: Any, ranks: Any) -> Any:
    return _with_values(gradient, lambda values: values / tf.cast(ranks, values.dtype))


def _by_type(run: Any, tensors: list[tf.Tensor], names: list[str]) -> list[tf.Tensor]:
    """`run` of the tensors of each type, with their names; the results in the order of the tensors."""
    places: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(i)
    result: list[Any] = [None] * len(tensors)
    for of_type in places.values():
        ran = run([tensors[i] for i in of_type], [names[i] for i in of_type])
        for i, tensor in zip(of_type, ran, strict=True):
            result[i] = tensor
    return result
