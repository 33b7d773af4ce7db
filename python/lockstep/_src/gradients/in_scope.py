"""The exchange of gradients in a scope: every worker applies the mean of all workers' gradients.

The mean is weighted by each worker's rows (`graph/row_weights.py`). So R workers compute the same as one worker with
the batches of all, if the loss is a mean over the batch. A gradient that was accumulated in a variable cannot be
distinguished from one that was never exchanged. It may be exchanged a second time, because the mean of equal values is
this value. So it may be if it cannot be excluded that it differs between workers.
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
from lockstep._src.gradients.settings import Exchange
from lockstep._src.replicas import replicated
from lockstep._src.tables.sharded import is_table


class _ShardedVariables:
    """Variables whose gradients stay on this rank: the gradient of their lookup is the mean already."""

    def among(self, variables: Sequence[Any]) -> list[bool]:
        """Returns for each variable whether it is sharded."""
        return [is_table(v) for v in variables]


def exchange() -> GradientExchange:
    """Returns the exchange for the current options."""
    how = Exchange(
        ranks=None,
        compression=None if wire.gradient_dtype() == tf.float32 else wire.GradientCompressor(),
        buckets=context.options.grad_nbuckets,
        weighs_rows=True,
        unique_rows=True,
        scale_local=False,
    )
    return GradientExchange(how, "lockstep_gradients", _ShardedVariables())


class ScopeUpdates:
    """The exchange of one optimizer's gradients by the options of the scope, with the methods of `OwnUpdates`."""

    def __init__(self) -> None:
        self.steps = exchange()

    def computed(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], has_exchanged: bool = False
    ) -> Sequence[int] | None:
        """Returns None, for all gradients, or [] if they have been exchanged.

        Optimizers may be nested: a subclass that calls its base, or an optimizer that wraps another. The innermost one
        exchanges. So the outer ones, which may clip gradients for instance, get the mean.
        """
        return [] if has_exchanged else None

    def apply(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        apply: Callable[[list[Gradient]], Any],
        skip: Callable[[], Any],
    ) -> Any:
        """Applies gradients; in a graph, those that may differ between workers are exchanged first.

        Such are gradients from elsewhere, for instance of `tf.gradients`, and gradients of exchanged gradients.
        """
        del skip  # every pass completes a step
        is_left_out = tf.executing_eagerly() or self.steps.lane.is_alone()
        # A table's gradient needs no exchange.
        replicated_ones = [None if is_table(v) else g for g, v in zip(gradients, variables, strict=True)]
        which = [] if is_left_out else provenance.differing_in_graph(replicated_ones)
        applied = apply(self.steps.exchange(gradients, variables, which))
        replicated.initialize_all_from_worker_0()
        return applied
