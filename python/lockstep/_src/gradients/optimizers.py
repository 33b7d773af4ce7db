"""The moments at which an optimizer's gradients are exchanged, for the adapters of all kinds of optimizers.

Gradients are exchanged where the optimizer computes them. A program that changes them then, by clipping for instance,
sees what is applied. Gradients that come from elsewhere are exchanged when they are applied.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

from lockstep._src.gradients import provenance
from lockstep._src.gradients.accumulation import Passes
from lockstep._src.gradients.agreed_variables import Gradient
from lockstep._src.gradients.exchange import GradientExchange
from lockstep._src.gradients.graphs import Track
from lockstep._src.gradients.settings import Exchange
from lockstep._src.gradients.variable_sets import Noted


class Updates(abc.ABC):
    """The exchange of one optimizer's gradients, as its adapter sees it.

    Attributes:
      steps: exchanges.
    """

    steps: GradientExchange | Passes

    @abc.abstractmethod
    def computed(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], has_exchanged: bool = False
    ) -> Sequence[int] | None:
        """Returns which of the gradients that an optimizer has computed `steps` is to exchange; None: all.

        Args:
          gradients: None where there is none.
          variables: one for each.
          has_exchanged: whether gradients were exchanged while it computed them.
        """

    @abc.abstractmethod
    def apply(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        apply: Callable[[list[Gradient]], Any],
        skip: Callable[[], Any],
        prepare: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Applies gradients; those that were not exchanged yet are exchanged first.

        Args:
          gradients: None where there is none.
          variables: one for each.
          apply: applies them.
          skip: is done instead in a pass that completes no step.
          prepare: makes what `apply` would make in a conditional otherwise.

        Returns:
          The result of `apply`; with several passes a tensor or an operation.
        """


def exchanging_compute(
    compute_gradients: Callable[..., Any], updates_of: Callable[[Any], Updates | None]
) -> Callable[..., Any]:
    """Returns a `compute_gradients` that exchanges what it computes.

    Args:
      compute_gradients: returns pairs of a gradient and its variable.
      updates_of: gives the exchange of an optimizer; None where its gradients are exchanged when they are applied.
    """

    @functools.wraps(compute_gradients)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with provenance.Watch() as inside:
            pairs = compute_gradients(self, *args, **kwargs)
        updates = updates_of(self)
        if updates is None:
            return pairs
        pairs = list(pairs)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        which = updates.computed(gradients, variables, inside.has_exchanged)
        return list(zip(updates.steps.exchange(gradients, variables, which), variables, strict=True))

    return wrapped


class OwnUpdates(Updates):
    """The exchange of one optimizer, by settings of its own.

    Args:
      how: gradients are exchanged.
      name: begins the names of what is exchanged.
      track: as of `LocalVariables`.

    Attributes:
      exchange: exchanges.
      passes: sums over several passes; None where every pass is exchanged.
      steps: that of the two by which gradients go.
    """

    def __init__(self, how: Exchange, name: str, track: Track | None = None) -> None:
        self.exchange = GradientExchange(how, name)
        self.passes = Passes(self.exchange, track) if how.passes > 1 else None
        self.steps: GradientExchange | Passes = self.passes or self.exchange
        self._delivered = Noted()
        self._is_applying = False

    def computed(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], has_exchanged: bool = False
    ) -> Sequence[int] | None:
        """Returns which gradients have not been exchanged yet; all of them where passes are summed."""
        which = None if self.passes is not None else self.exchange.unexchanged(gradients, variables)
        self._delivered.add(variables)
        return which

    def apply(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        apply: Callable[[list[Gradient]], Any],
        skip: Callable[[], Any],
        prepare: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Applies gradients, which the optimizer has computed, or which it has never seen.

        What `apply` applies in turn, as an optimizer around another one does, is applied as it is.
        """
        gradients = list(gradients)
        if self._is_applying:
            return apply(gradients)

        def apply_all(gradients: list[Gradient]) -> Any:
            self._is_applying = True
            try:
                return apply(gradients)
            finally:
                self._is_applying = False

        try:
            if self.passes is None:
                which = self.exchange.unexchanged(gradients, variables, self._delivered)
                return apply_all(self.exchange.exchange(gradients, variables, which))
            if self._are_new(gradients, variables):
                gradients = self.passes.exchange(gradients, variables)
            prepare()
            return self.passes.if_complete(gradients, variables, lambda: apply_all(gradients), skip)
        finally:
            self._delivered.discard(variables)
            provenance.delivered_by_tapes.discard(variables)

    def _are_new(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> bool:
        """Returns whether a pass of these gradients has not been added yet.

        Raises:
          ValueError: some have been; or they were exchanged, but not summed.
        """
        name = self.exchange.name
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        unexchanged = self.exchange.unexchanged(gradients, variables, self._delivered)
        fresh = [i for i in unexchanged if gradients[i] is not None]
        if fresh and fresh != there:
            raise ValueError(f"{name}: some gradients of a step have been summed or exchanged, some not")
        if not fresh and not all(variables[i] in self._delivered for i in there):
            raise ValueError(
                f"{name}: several passes are summed before they are exchanged, and these gradients have been "
                "exchanged: wrap the tape or the optimizer, not both"
            )
        return bool(fresh) or not any(v in self._delivered for v in variables)
