"""The times at which an optimizer's gradients are exchanged, for the adapters of all kinds of optimizers.

Gradients are exchanged when the optimizer computes them. So a program that then changes them, by clipping for instance,
changes the exchanged gradients. Gradients from elsewhere are exchanged when they are applied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lockstep._src.gradients import provenance
from lockstep._src.gradients.accumulation import Passes
from lockstep._src.gradients.agreed_variables import Gradient
from lockstep._src.gradients.exchange import GradientExchange
from lockstep._src.gradients.graphs import Track
from lockstep._src.gradients.settings import Exchange
from lockstep._src.gradients.variable_sets import VariableSet


def exchanging_compute(compute_gradients: Callable[..., Any], updates_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Returns a `compute_gradients` that exchanges the gradients that it computes.

    Args:
      compute_gradients: returns pairs of a gradient and its variable.
      updates_of: returns the exchange of an optimizer, such as `OwnUpdates`; None if its gradients are exchanged when
        they are applied.
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


class OwnUpdates:
    """The exchange of one optimizer's gradients with its own settings, as the optimizer's adapter uses it.

    Args:
      how: the settings.
      name: the names of exchanges begin with it.
      track: as in `LocalVariables`.

    Attributes:
      exchange: exchanges gradients.
      passes: sums over several passes; None if every pass is exchanged.
      steps: `passes` if it is set, otherwise `exchange`.
    """

    def __init__(self, how: Exchange, name: str, track: Track | None = None) -> None:
        self.exchange = GradientExchange(how, name)
        self.passes = Passes(self.exchange, track) if how.passes > 1 else None
        self.steps: GradientExchange | Passes = self.passes or self.exchange
        self._delivered = VariableSet()
        self._is_applying = False

    def computed(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], has_exchanged: bool = False
    ) -> Sequence[int] | None:
        """Returns the places of computed gradients that `steps` must exchange; None, for all, if passes are summed.

        Args:
          gradients: the gradients; None for variables without one.
          variables: one for each gradient.
          has_exchanged: whether gradients were exchanged during their computation.
        """
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
        """Applies gradients; those that were not exchanged yet are exchanged first.

        If `apply` calls this method again, as an optimizer that wraps another one does, the gradients are applied
        unchanged.

        Args:
          gradients: the gradients; None for variables without one.
          variables: one for each gradient.
          apply: applies the gradients.
          skip: called instead of `apply` in a pass that does not complete a step.
          prepare: creates the variables that `apply` would otherwise create in a conditional.

        Returns:
          The result of `apply`; with several passes a tensor or an operation.
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
          ValueError: only some of the gradients have been added, or they were exchanged without being summed.
        """
        name = self.exchange.name
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        unexchanged = self.exchange.unexchanged(gradients, variables, self._delivered)
        fresh = [i for i in unexchanged if gradients[i] is not None]
        if fresh and fresh != there:
            raise ValueError(f"{name}: some gradients of a step have been summed or exchanged, some not")
        if not fresh and not all(variables[i] in self._delivered for i in there):
            raise ValueError(
                f"{name}: several passes are summed before they are exchanged, but these gradients have been "
                "exchanged: wrap the tape or the optimizer, not both"
            )
        return bool(fresh) or not any(v in self._delivered for v in variables)
