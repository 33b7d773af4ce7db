"""What `horovod.keras` and `horovod.tensorflow.keras` have in common; `keras` is the module that each is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.exchange import layers_of, make_exchange
from lockstep.data_parallel import is_exchanging, make_exchanging_keras_optimizer


def make_optimizer(optimizer: Any, name: str | None, op: int, local_layers: Any = None, **exchange: Any) -> Any:
    """An optimizer of Keras that exchanges gradients; `exchange` are arguments of `make_exchange`."""
    if op not in (hvd.Average, hvd.Sum):
        raise ValueError("op currently only supports Average and Sum")
    layers = layers_of(local_layers)
    made = make_exchanging_keras_optimizer(optimizer, make_exchange(op=op, **exchange), name)
    for layer in layers:
        made.register_local_layer(layer)
    return made


def evaluate(value: Any) -> Any:
    """The value of a tensor, or what running an operation gives, in Keras' session where there is one."""
    return value if tf.executing_eagerly() else tf.compat.v1.keras.backend.get_session().run(value)


def load_model(
    keras: Any,
    wrap: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
) -> Any:
    """A saved model, whose optimizer exchanges gradients, with its state; of Keras 3 one that isn't compiled by XLA."""
    objects = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is None:
        return model
    if not is_exchanging(optimizer) and not is_exchanging(inner):
        model.optimizer = wrap(optimizer)
    if hasattr(model, "_resolve_auto_jit_compile") and model.jit_compile:
        # Keras 3 has settled it while it loaded, by a plain optimizer, and before, when it saved what "auto" came to:
        # nothing tells whether XLA, which cannot compile exchanges, was the program's wish.
        model.jit_compile = False
    return model


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """As `DistributedOptimizer`, but gradients of the weights of `local_layers` are not exchanged.

    Args:
      optimizer: as there, like all others.
      name: likewise.
      device_dense: likewise.
      device_sparse: likewise.
      compression: likewise.
      sparse_as_dense: likewise.
      gradient_predivide_factor: likewise.
      op: likewise.
      backward_passes_per_step: likewise.
      average_aggregated_gradients: likewise.
      groups: likewise.
      process_set: likewise.
      local_layers: a layer of Keras, or several; their weights may be made later.
      scale_local_gradients: likewise.
    """
    return make_optimizer(
        optimizer,
        name,
        op,
        local_layers,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """Gives all global variables the values of one rank, in Keras' session; RuntimeError eagerly."""
    return evaluate(hvd.broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = hvd.Compression.none,
) -> Any:
    """Reduces a value over all ranks, at once.

    Args:
      value: fit for `tf.constant`, of one shape on all ranks.
      name: of what travels.
      average: True for `op=Average`, False for Sum: what came before `op`.
      prescale_factor: factor before the reduction.
      postscale_factor: factor behind it.
      op: of Horovod's; default Average.
      compression: what travels.

    Returns:
      A tensor; in a graph, what the session gives.
    """
    reduced = hvd.allreduce(
        tf.constant(value),
        average=average,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    )
    return evaluate(reduced)


def allgather(value: Any, name: str | None = None) -> Any:
    """The rows of all ranks, in the order of ranks, at once; see `allreduce`."""
    return evaluate(hvd.allgather(tf.constant(value), name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of one rank, at once; see `allreduce`."""
    return evaluate(hvd.broadcast(tf.constant(value), root_rank, name=name))


def reducescatter(value: Any, name: str | None = None, op: int = hvd.Average) -> Any:
    """The rows that this rank gets of the reduced value, at once; see `allreduce`."""
    return evaluate(hvd.reducescatter(tf.constant(value), name=name, op=op))
