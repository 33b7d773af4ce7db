"""Optimizers of Keras that exchange gradients, in models and without a model."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from lockstep._src.compat.horovod.collectives import AVERAGE, SUM
from lockstep._src.compat.horovod.gradients import exchange_of, layers_of
from lockstep._src.gradients.keras_hooks import is_exchanging
from lockstep._src.gradients.keras_optimizers import make_exchanging


def make_optimizer(optimizer: Any, name: str | None, op: int, local_layers: Any = None, **arguments: Any) -> Any:
    """Returns an optimizer of Keras that exchanges gradients.

    Args:
      optimizer: the optimizer that applies gradients.
      name: begins the names of exchanged tensors.
      op: average or sum.
      local_layers: a layer of Keras, or several, whose gradients are not exchanged.
      **arguments: other arguments of `exchange_of`.

    Raises:
      ValueError: another `op`, or arguments that don't go together.
    """
    if op not in (AVERAGE, SUM):
        raise ValueError("op currently only supports Average and Sum")
    layers = layers_of(local_layers)
    made = make_exchanging(optimizer, exchange_of(op=op, **arguments), name)
    for layer in layers:
        made.register_local_layer(layer)
    return made


def load_model(
    keras: ModuleType,
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
    compression: Any,
) -> Any:
    """Returns a saved model of `keras` whose optimizer exchanges gradients; see `horovod.keras.load_model`."""
    objects = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None:
        return model
    if not is_exchanging(optimizer) and not is_exchanging(inner):
        model.optimizer = make_optimizer(optimizer, None, AVERAGE, compression=compression)
    if hasattr(model, "_resolve_auto_jit_compile") and model.jit_compile:
        # Keras 3 has resolved "auto" by the plain optimizer, when it saved the model or loaded it. XLA, which cannot
        # compile exchanges, may have been the program's wish or Keras' choice; nothing tells.
        model.jit_compile = False
    return model
