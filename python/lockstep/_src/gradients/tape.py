"""Gradient tapes whose `gradient` exchanges its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lockstep._src.gradients.agreed_variables import Gradient
from lockstep._src.gradients.exchange import GradientExchange
from lockstep._src.gradients.provenance import delivered_by_tapes
from lockstep._src.gradients.settings import Exchange

if TYPE_CHECKING:
    from tensorflow import GradientTape
else:
    GradientTape = object  # the tape's own class comes behind `_Exchanging`

_NONE = tf.UnconnectedGradients.NONE


class _Exchanging(GradientTape):
    """The base of an exchanging tape's class; it precedes the tape's own class."""

    _lockstep_exchange: GradientExchange
    _lockstep_base: type

    @tf.autograph.experimental.do_not_convert
    def register_local_source(self, source: Any) -> None:
        """Keeps gradients of `source` on this rank from now on."""
        self._lockstep_exchange.local.add(source)

    def register_local_layer(self, layer: Any) -> None:
        """Keeps gradients of a layer's weights on this rank from now on, also of weights that it creates later."""
        self._lockstep_exchange.local.add_layer(layer)

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
    ) -> Any:
        """Returns exchanged gradients.

        Args:
          target: the tensor or tensors whose gradients are computed.
          sources: variables or tensors, in any structure.
          output_gradients: the gradients of the target; None: ones.
          use_generic_names: whether tensors are named "grad_0", "grad_1", ...; two such calls must not overlap.
          unconnected_gradients: the result for sources on which the target doesn't depend. As in TensorFlow, it may
            also be the fourth argument.

        Returns:
          Gradients in the structure of `sources`.
        """
        if isinstance(use_generic_names, tf.UnconnectedGradients):
            use_generic_names, unconnected_gradients = False, use_generic_names
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(sources)
        reduced = self._lockstep_exchange.exchange(tf.nest.flatten(gradients), flat, generic_names=use_generic_names)
        delivered_by_tapes.add([s for s in flat if not tf.is_tensor(s) or isinstance(s, tf.Variable)])
        return tf.nest.pack_sequence_as(sources, reduced)

    @tf.autograph.experimental.do_not_convert
    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Gradient]], list[tuple[Any, Gradient]]]:
        """Returns pairs of a source and its gradient: pairs of local sources, and the others."""
        gradients = self.gradient(target, sources, output_gradients, use_generic_names)
        local: list[tuple[Any, Gradient]] = []
        others: list[tuple[Any, Gradient]] = []
        for source, gradient, is_local in zip(
            sources, gradients, self._lockstep_exchange.local.among(sources), strict=True
        ):
            (local if is_local else others).append((source, gradient))
        return local, others


def make_exchanging(tape: tf.GradientTape, exchange: Exchange, name: str) -> Any:
    """Returns a tape with the recording of this one, whose `gradient` exchanges its results.

    `jacobian` and `batch_jacobian` still return the gradients of this rank.

    Args:
      tape: a tape with or without a recording; an exchanging one counts as its original class.
      exchange: the settings; a tape doesn't sum passes.
      name: the names of exchanges begin with it.
    """
    base = getattr(type(tape), "_lockstep_base", type(tape))
    cls = type(base.__name__, (_Exchanging, base), {"__doc__": base.__doc__, "_lockstep_base": base})
    made: Any = object.__new__(cls)
    vars(made).update(vars(tape))
    made._lockstep_exchange = GradientExchange(exchange, name)
    return made
