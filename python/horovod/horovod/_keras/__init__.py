"""What `horovod.keras` and `horovod.tensorflow.keras` have in common; `keras` is the module that each is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.exchange import make_exchange, weights_of
from lockstep.data_parallel import is_exchanging, make_exchanging_keras_optimizer


def make_optimizer(optimizer: Any, name: str | None, op: int, local_layers: Any = None, **exchange: Any) -> Any:
    """An optimizer of Keras that exchanges gradients; `exchange` are arguments of `make_exchange`."""
    if op not in (hvd.Average, hvd.Sum):
        raise ValueError("op currently only supports Average and Sum")
    weights = weights_of(local_layers)
    made = make_exchanging_keras_optimizer(optimizer, make_exchange(op=op, **exchange), name)
    for weight in weights:
        made.register_local_var(weight)
    return made


def evaluate(keras: Any, value: Any) -> Any:
    """The value of a tensor, or what running an operation gives, in Keras' session where there is one."""
    return value if tf.executing_eagerly() else keras.backend.get_session().run(value)


def load_model(
    keras: Any,
    wrap: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """A saved model, whose optimizer exchanges gradients, with its state."""
    objects = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is not None and not is_exchanging(optimizer) and not is_exchanging(inner):
        model.optimizer = wrap(optimizer)
    return model
