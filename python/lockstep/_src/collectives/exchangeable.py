"""Conversion of values to tensors that collectives take; errors name the exchange and the tensor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


def as_tensor(kind: str, value: Any, name: str | None = None) -> tf.Tensor:
    """Returns a value as a dense tensor.

    Args:
      kind: the kind of the collective, for the message.
      value: any value that `tf.convert_to_tensor` takes.
      name: the name of the tensor, for the message.

    Raises:
      TypeError: the value is a ragged or sparse tensor.
    """
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        parts = "flat_values and row_splits" if isinstance(value, tf.RaggedTensor) else "indices and values"
        raise TypeError(
            f"{_called(kind, name, value)}: got a {type(value).__name__} of type {value.dtype.name}, wanted a dense "
            f"tensor; exchange its {parts} separately"
        )
    return tf.convert_to_tensor(value)


def as_tensors(kind: str, operation: str, values: Sequence[Any], names: Sequence[str | None]) -> list[tf.Tensor]:
    """Returns values as dense tensors of types that an operation of the engine takes.

    Args:
      kind: the kind of the collective, for the message.
      operation: the type of the operation; its argument is of type T.
      values: values that `tf.convert_to_tensor` takes.
      names: the names of the tensors, for the message; None where a name is not known.

    Raises:
      TypeError: a value is a ragged or sparse tensor, or of a type that the operation does not take.
    """
    tensors = [as_tensor(kind, value, name) for value, name in zip(values, names, strict=True)]
    called = [_called(kind, name, value) for value, name in zip(values, names, strict=True)]
    check_types(operation, tensors, called)
    return tensors


def check_types(operation: str, tensors: Sequence[tf.Tensor], called: Sequence[str]) -> None:
    """Raises TypeError for a tensor of a type that an operation of the engine does not take.

    Args:
      operation: the type of the operation; its argument is of type T.
      tensors: the tensors to exchange.
      called: the name of each in the message: "allreduce 'loss'".
    """
    allowed = _types(operation)
    for tensor, name in zip(tensors, called, strict=True):
        if tensor.dtype.as_datatype_enum not in allowed:
            wanted = ", ".join(tf.as_dtype(dtype).name for dtype in allowed)
            raise TypeError(f"{name}: got a tensor of type {tensor.dtype.name}, wanted one of {wanted}")


def _called(kind: str, name: str | None, value: Any) -> str:
    # Only tensors in graphs have names.
    if name is None and (isinstance(value, tf.Variable) or not tf.executing_eagerly()):
        name = getattr(value, "name", None)
    return kind if name is None else f"{kind} '{name}'"


@functools.cache
def _types(operation: str) -> tuple[int, ...]:
    """Returns the numbers of the types that an operation of the loaded library takes as T."""
    (attribute,) = (attr for attr in op_def_registry.get(operation).attr if attr.name == "T")
    return tuple(attribute.allowed_values.list.type)
