"""What the wrappers of all kinds of optimizers have in common: exchange when gradients are computed, or applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep._src.gradients.accumulation import Passes
from lockstep._src.gradients.exchange import Exchange
from lockstep._src.gradients.graphs import Track
from lockstep._src.gradients.reducer import Gradient, Reducer
from lockstep._src.gradients.variable_sets import Noted, delivered_by_tapes


class Updates:
    """The exchange of one optimizer.

    Gradients are exchanged where the optimizer computes them, so that what a program does with them, clipping for
    instance, sees what is applied; those that come from elsewhere when they are applied.

    Args:
      exchange: how gradients are exchanged.
      name: begins the names of what is exchanged.
      track: as of `LocalVariables`.

    Attributes:
      reducer: exchanges.
      passes: sums over several passes; None where every pass is exchanged.
    """

    def __init__(self, exchange: Exchange, name: str, track: Track | None = None) -> None:
        self.reducer = Reducer(exchange, name)
        self.passes = Passes(self.reducer, track) if exchange.passes > 1 else None
        self._delivered = Noted()
        self._is_applying = False

    def compute(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        """What an optimizer's `compute_gradients` is to return, of this rank's gradients."""
        if self.passes is not None:
            gradients = self._add(gradients, variables)
        else:
            gradients = self.reducer.reduce_what_is_local(gradients, variables)
        self._delivered.add(variables)
        return gradients

    def apply(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        apply: Callable[[list[Gradient]], Any],
        skip: Callable[[], Any],
        prepare: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Applies gradients, which `compute` has given, or which it has never seen.

        What `apply` applies in turn, as an optimizer around another one does, is applied as it is.

        Args:
          gradients: None where there is none.
          variables: one for each.
          apply: applies them.
          skip: what is done instead in a pass that completes no step.
          prepare: makes what `apply` would make in a conditional otherwise.

        Returns:
          What `apply` does; with several passes a tensor or an operation.
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
                return apply_all(self.reducer.reduce_what_is_local(gradients, variables, self._delivered))
            if self._are_new(gradients, variables):
                gradients = self._add(gradients, variables)
            prepare()
            return self.passes.if_complete(gradients, variables, lambda: apply_all(gradients), skip)
        finally:
            self._delivered.discard(variables)
            delivered_by_tapes.discard(variables)

    def _are_new(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> bool:
        """Whether a pass of these gradients has not been added yet.

        Raises:
          ValueError: some have been; or they were exchanged, but not summed.
        """
        name = self.reducer.name
        fresh = self.reducer.unexchanged(gradients, variables, self._delivered)
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if fresh and fresh != there:
            raise ValueError(f"{name}: some gradients of a step have been summed or exchanged, some not")
        if not fresh and not all(variables[i] in self._delivered for i in there):
            raise ValueError(
                f"{name}: several passes are summed before they are exchanged, and these gradients have been "
                "exchanged: wrap the tape or the optimizer, not both"
            )
        return bool(fresh) or not any(v in self._delivered for v in variables)

    def _add(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        assert self.passes is not None
        return self.passes.add(gradients, variables)
