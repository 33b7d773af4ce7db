"""The exchange of gradients in a scope: every worker applies the mean of all workers' gradients.

The mean is weighed by each worker's rows (`graph/row_weights.py`), so that R workers compute what one computes with the
batches of all and a loss that is a mean over the batch. A gradient that was accumulated in a
variable cannot be told from one that was never exchanged. It may be exchanged a second time, because the mean of equal
values is that value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import wire
from lockstep._src.engine.context import context
from lockstep._src.gradients import provenance
from lockstep._src.gradients.agreed_variables import Gradient
from lockstep._src.gradients.exchange import GradientExchange
from lockstep._src.gradients.optimizers import Updates
from lockstep._src.gradients.settings import Exchange
from lockstep._src.replicas import replicated
from lockstep._src.tables import sharded


class _ShardedVariables:
    """Variables whose gradients stay on this rank: the lookup's own gradient is the mean already."""

    def among(self, variables: Sequence[Any]) -> list[bool]:
        """Returns of each variable whether it is sharded."""
        return [sharded.is_sharded(v) for v in variables]


def exchange() -> GradientExchange:
    """Returns the exchange that the present options ask for."""
    is_plain = wire.gradient_dtype() == tf.float32
    how = Exchange(
        ranks=None,
        compression=None if is_plain else wire.GradientCompressor(),
        buckets=context.options.grad_nbuckets,
        weighs_rows=True,
        scale_local=False,
    )
    return GradientExchange(how, "lockstep_gradients", _ShardedVariables())


class ScopeUpdates(Updates):
    """The exchange of one optimizer's gradients by the options of the scope."""

    def __init__(self) -> None:
        self.steps = exchange()

    def computed(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], has_exchanged: bool = False
    ) -> Sequence[int] | None:
        """Returns all gradients, or none.

        Of nested optimizers (a subclass that calls its base, an optimizer that wraps another) the innermost exchanges,
        so that what the outer ones do with the gradients, clipping for instance, sees the mean.
        """
        return [] if has_exchanged else None

    def apply(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        apply: Callable[[list[Gradient]], Any],
        skip: Callable[[], Any],
        prepare: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Applies gradients; in a graph those that come from elsewhere, `tf.gradients` for instance, are exchanged."""
        is_left_out = tf.executing_eagerly() or self.steps.lane.is_alone()
        which = [] if is_left_out else provenance.local_in_graph(gradients)
        applied = apply(self.steps.exchange(gradients, variables, which))
        replicated.begin_alike()
        return applied
