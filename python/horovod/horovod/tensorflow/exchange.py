"""What Horovod's wrappers have in common: their arguments, as `lockstep.data_parallel` has them."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from lockstep.data_parallel import Exchange

REDUCTIONS = {
    mpi_ops.Average: "mean",
    mpi_ops.Sum: "sum",
    mpi_ops.Adasum: "adasum",
    mpi_ops.Min: "min",
    mpi_ops.Max: "max",
    mpi_ops.Product: "product",
}


def make_exchange(
    *,
    op: int = mpi_ops.Average,
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
    """How gradients are exchanged, of Horovod's arguments; `same` are called alike.

    Raises:
      ValueError: arguments that don't go together, or are none.
      TypeError: a compression or a process set that is none.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"op: got {op!r}, wanted one of hvd.Average, Sum, Adasum, Min, Max, Product")
    if gradient_predivide_factor != 1.0 and op != mpi_ops.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("num_groups is called groups since Horovod 0.22", DeprecationWarning, stacklevel=3)
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
        reduction=REDUCTIONS[op],
        predivide_factor=gradient_predivide_factor,
        compression=None if compression is Compression.none else compression,
        groups=groups,
        scale_local=scale_local_gradients,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        **same,
    )


def _checked_groups(groups: Any) -> Any:
    """As they are given, numbers of numpy's as Python's; ValueError for neither a number nor lists of variables."""
    wanted = "groups should be a non-negative integer or a list of list of tf.Variable"
    if groups is None:
        return None
    if isinstance(groups, numbers.Integral) and not isinstance(groups, bool):
        if groups > 0:
            return int(groups)
    elif isinstance(groups, list):
        for group in groups:
            if not isinstance(group, list | tuple):
                raise ValueError(f"{wanted}: got {group!r} in the list; for one group of all of it, give [groups]")
            if strange := [one for one in group if not (hasattr(one, "assign") or tf.is_tensor(one))]:
                raise ValueError(f"{wanted}: got {strange[0]!r} in a group")
        return groups
    raise ValueError(f"{wanted}: got {groups!r}; without groups, leave it out")


def layers_of(local_layers: Any) -> list[Any]:
    """A layer, or several, as a list.

    Raises:
      ValueError: something is no layer.
    """
    layer_classes = tuple(
        {
            getattr(module, "layers", module).Layer
            for module in (tf.keras, sys.modules.get("keras"), sys.modules.get("tf_keras"))
            if hasattr(module, "layers")
        }
    )
    if local_layers is None:
        return []
    layers = [local_layers] if isinstance(local_layers, layer_classes) else local_layers
    layers = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(isinstance(layer, layer_classes) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return layers
