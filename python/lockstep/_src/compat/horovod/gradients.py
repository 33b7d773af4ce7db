"""Optimizers and tapes that exchange gradients, made of Horovod's arguments."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lockstep._src.compat.horovod.collectives import ADASUM, AVERAGE, MAX, MIN, PRODUCT, REDUCTIONS, reduction_of
from lockstep._src.compat.horovod.compression import Compression
from lockstep._src.compat.horovod.process_sets import ProcessSet, global_process_set
from lockstep._src.gradients.adasum import AdasumOptimizer
from lockstep._src.gradients.keras_optimizers import make_exchanging as make_exchanging_keras_optimizer
from lockstep._src.gradients.keras_optimizers import make_variables_callable
from lockstep._src.gradients.settings import Exchange
from lockstep._src.gradients.tape import make_exchanging as make_exchanging_tape
from lockstep._src.gradients.tensorflow1_optimizers import ExchangingOptimizer


def make_optimizer(
    optimizer: Any, name: str | None, use_locking: bool, op: int, process_set: ProcessSet, **arguments: Any
) -> Any:
    """Returns an optimizer of TensorFlow 1 or of Keras that exchanges; see `horovod.tensorflow.DistributedOptimizer`.

    Args:
      optimizer: the optimizer that applies gradients.
      name: begins the names of exchanged tensors.
      use_locking: of an optimizer of TensorFlow 1.
      op: average, sum, or Adasum for an optimizer of TensorFlow 1.
      process_set: the set whose ranks exchange.
      **arguments: other arguments of `exchange_of`.
    """
    if op in (MIN, MAX, PRODUCT):
        raise ValueError(
            f"op: got hvd.{REDUCTIONS[op].capitalize()}, wanted hvd.Average, Sum or, of an optimizer of TensorFlow 1, "
            "Adasum"
        )
    if op == ADASUM and arguments["average_aggregated_gradients"]:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    is_tensorflow1 = isinstance(optimizer, tf.compat.v1.train.Optimizer)
    if op == ADASUM and not is_tensorflow1:
        raise ValueError("op == Adasum is not supported yet with Keras")
    exchange = exchange_of(op=op, process_set=process_set, **arguments)
    if not is_tensorflow1:
        return make_exchanging_keras_optimizer(optimizer, exchange, name)
    if op != ADASUM:
        name = name or f"Distributed{type(optimizer).__name__}"
        return ExchangingOptimizer(optimizer, exchange, name, use_locking)
    if process_set.process_set_id != global_process_set.process_set_id:
        raise NotImplementedError("Adasum does not support process sets yet")
    name = name or f"DistributedDelta{type(optimizer).__name__}"
    return AdasumOptimizer(optimizer, name, use_locking, exchange.compression, exchange.passes)


def make_tape(gradtape: tf.GradientTape, local_layers: Any = None, **arguments: Any) -> Any:
    """Returns a tape that exchanges; see `horovod.tensorflow.DistributedGradientTape`.

    Args:
      gradtape: the tape whose records it takes over.
      local_layers: a layer of Keras, or several, whose gradients are not exchanged.
      **arguments: arguments of `exchange_of`.
    """
    layers, exchange = layers_of(local_layers), exchange_of(**arguments)
    # Programs with a tape call `hvd.broadcast_variables(optimizer.variables(), root_rank=0)` next.
    make_variables_callable()
    tape = make_exchanging_tape(gradtape, exchange, "DistributedGradientTape")
    for layer in layers:
        tape.register_local_layer(layer)
    return tape


def exchange_of(
    *,
    op: int = AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    scale_local_gradients: bool = True,
    **same: Any,
) -> Exchange:
    """Returns the settings of an exchange that Horovod's arguments stand for; `same` have the same names in both.

    Raises:
      ValueError: arguments that don't go together, or invalid ones.
      TypeError: an invalid compression or process set.
    """
    reduction = reduction_of(op)
    if gradient_predivide_factor != 1.0 and op != AVERAGE:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("num_groups is called groups since Horovod 0.22", DeprecationWarning, _program_level())
        groups = num_groups if groups is None else groups
    groups = _checked_groups(groups)
    factor = gradient_predivide_factor
    if not (isinstance(factor, numbers.Real) and math.isfinite(factor) and factor != 0):
        raise ValueError(f"gradient_predivide_factor: got {factor!r}, wanted a number that is finite and not 0")
    passes = backward_passes_per_step
    if not (isinstance(passes, numbers.Integral) and passes >= 1):
        raise ValueError(f"backward_passes_per_step: got {passes!r}, wanted a whole number, at least 1")
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            f"compression: got {compression!r}, wanted hvd.Compression.none, fp16, bf16 or a class with compress and "
            "decompress"
        )
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set: got {process_set!r}, wanted hvd.ProcessSet, or hvd.global_process_set")
    return Exchange(
        ranks=process_set,
        reduction=reduction,
        predivide_factor=gradient_predivide_factor,
        compression=None if compression is Compression.none else compression,
        groups=groups,
        scale_local=scale_local_gradients,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        **same,
    )


def _program_level() -> int:
    """Returns the `stacklevel` at which a warning of the calling function names the program's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "horovod",
        "lockstep",
        "tensorflow",
    ):
        frame, level = frame.f_back, level + 1
    return level


def _checked_groups(groups: Any) -> Any:
    """Returns groups with numbers as Python's; raises ValueError for neither a number nor lists of variables."""
    wanted = "groups should be a non-negative integer or a list of list of tf.Variable"
    if groups is None:
        return None
    if isinstance(groups, numbers.Integral) and not isinstance(groups, bool):
        number = int(groups)
        if number > 0:
            return number
    elif isinstance(groups, list):
        for group in groups:
            if not isinstance(group, list | tuple):
                raise ValueError(f"{wanted}: got {group!r} in the list; for one group of all of it, give [groups]")
            if strange := [one for one in group if not (hasattr(one, "assign") or tf.is_tensor(one))]:
                raise ValueError(f"{wanted}: got {strange[0]!r} in a group")
        return groups
    raise ValueError(f"{wanted}: got {groups!r}; without groups, leave it out")


def layers_of(local_layers: Any) -> list[Any]:
    """Returns a layer, or several, as a list.

    Raises:
      ValueError: something is not a layer.
    """
    modules: tuple[Any, ...] = (tf.keras, sys.modules.get("keras"), sys.modules.get("tf_keras"))
    layer_classes = tuple({getattr(module, "layers", module).Layer for module in modules if hasattr(module, "layers")})
    if local_layers is None:
        return []
    layers = [local_layers] if isinstance(local_layers, layer_classes) else local_layers
    layers = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(isinstance(layer, layer_classes) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return layers
