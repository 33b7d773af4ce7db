"""Options of dynamic tables as values that JSON can represent, for the files of Keras models."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import keras
import tensorflow as tf

from lockstep._src.tables.dynamic import table_options

_CLASS = "lockstep_option"
_CLASSES = {
    value.__name__: value
    for value in vars(table_options).values()
    if isinstance(value, type) and (dataclasses.is_dataclass(value) or issubclass(value, enum.Enum))
}


def to_config(value: Any) -> Any:
    """Returns a value of an option in a form for JSON; others, such as functions, unchanged, which Keras refuses."""
    name = type(value).__name__
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {_CLASS: name, **{key: to_config(field) for key, field in fields.items()}}
    if isinstance(value, enum.Enum):
        return {_CLASS: name, "value": value.value}
    if isinstance(value, tf.DType):
        return {_CLASS: "DType", "value": value.name}
    if isinstance(value, (list, tuple)):
        return [to_config(one) for one in value]
    return keras.initializers.serialize(value) if isinstance(value, keras.initializers.Initializer) else value


def from_config(config: Any) -> Any:
    """Returns the argument of `to_config` from its result; lists become tuples."""
    if isinstance(config, (list, tuple)):
        return tuple(from_config(one) for one in config)
    if not isinstance(config, dict):
        return config
    if _CLASS not in config:
        return keras.initializers.deserialize(config)
    name = config[_CLASS]
    fields = {key: from_config(field) for key, field in config.items() if key != _CLASS}
    return tf.as_dtype(fields["value"]) if name == "DType" else _CLASSES[name](**fields)
