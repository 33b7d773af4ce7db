"""What the wrappers of all kinds of optimizers have in common: exchange when gradients are computed, or applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep._src.data_parallel.passes import Passes
from lockstep._src.data_parallel.reducer import Delivered, Exchange, Gradient, Reducer, delivered_by_tapes


class Updates:
    """The exchange of one optimizer.

    Gradients are exchanged where the optimizer computes them, so that what a program does with them, clipping for
    instance, sees what is applied; those that come from elsewhere when they are applied.

    Attributes:
      reducer: exchanges.
      passes: sums over several passes; None where every pass is exchanged.
    """

    def __init__(self, exchange: Exchange, name: str) -> None:
        self.reducer = Reducer(exchange, name)
        self.passes = Passes(self.reducer) if exchange.passes > 1 else None
        self._delivered = Delivered()

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
        try:
            if self.passes is None:
                return apply(self.reducer.reduce_what_is_local(gradients, variables, self._delivered))
            fresh = self.reducer.unexchanged(gradients, variables, self._delivered)
            there = [i for i, gradient in enumerate(gradients) if gradient is not None]
            if fresh and fresh != there:
                raise ValueError(
                    f"{self.reducer.name}: some gradients of a step have been summed or exchanged, some not"
                )
            if fresh:
                gradients = self._add(gradients, variables)
            prepare()
            return self.passes.if_complete(gradients, lambda: apply(gradients), skip)
        finally:
            self._delivered.discard(variables)
            delivered_by_tapes.discard(variables)

    def _add(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        assert self.passes is not None
        return self.passes.add(gradients, variables)
