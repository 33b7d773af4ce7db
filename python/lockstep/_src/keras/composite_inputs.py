"""Exports of Keras 3 models with ragged and sparse inputs.

Keras gives the signature of every exported model dense tensors. In a dense tensor the padding counts as keys, so that
such a signature serves other numbers than `predict`. Here the function `serve` takes the inputs as the model does. The
signature for servers takes their components, which are dense tensors:

| input `x` | inputs of the signature `serving_default` |
| --- | --- |
| ragged | `x_values` [N, ...], and `x_row_splits` [B + 1]; `x_row_splits_0`, ... if several dimensions are ragged |
| sparse | `x_indices` [N, rank], `x_values` [N], `x_dense_shape` [rank] |
| dense | `x` |

Letters: B batch, N values of all examples.

This module imports Keras. It needs eager execution of TensorFlow, and Keras 3.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.models.functional import Functional

from lockstep._src.keras.hooks import model_files

_Specs = dict[str, tf.TensorSpec]


def signature_of(model: keras.Model) -> list[Any] | None:
    """Returns the signature of a model with inputs that were declared ragged or sparse; None for all other models."""
    if isinstance(model, Functional):
        inputs = [model._inputs_struct]
    elif isinstance(model, keras.Sequential) and model.inputs:
        inputs = list(model.inputs)
    else:
        return None
    signature = keras.tree.map_structure(_spec_of, inputs)
    return signature if has_composites(signature) else None


def has_composites(signature: Any) -> bool:
    """Returns whether a signature has specifications of ragged or sparse tensors."""
    return any(isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)) for spec in keras.tree.flatten(signature))


def export(
    model: keras.Model,
    filepath: str | os.PathLike[str],
    signature: Sequence[Any],
    tracing: Callable[[], contextlib.AbstractContextManager[Any]],
    verbose: bool = True,
) -> None:
    """Writes a SavedModel of a model with ragged or sparse inputs.

    Args:
      model: a built model.
      filepath: the directory of the SavedModel.
      signature: the positional arguments of the model: structures of `tf.RaggedTensorSpec`, `tf.SparseTensorSpec`,
        `tf.TensorSpec` and `keras.InputSpec`.
      tracing: makes a context for the calls of the model.
      verbose: whether to print the endpoints.

    Raises:
      ValueError: two inputs, or their components, have the same name.
    """
    specs = [_checked_spec(spec) for spec in keras.tree.flatten(signature)]
    parts = [_parts_of(name, spec) for name, spec in zip(_names(model, signature), specs, strict=True)]
    named = [name for part in parts for name in part]
    if len(set(named)) < len(named):
        raise ValueError(
            f"export: the inputs of the signature would be named {named}, wanted a name of its own for each"
        )

    def call(*arguments: Any) -> Any:
        return model(*arguments)

    def call_by_components(components: dict[str, tf.Tensor]) -> Any:
        tensors = [_joined(spec, [components[name] for name in part]) for spec, part in zip(specs, parts, strict=True)]
        return model(*keras.tree.pack_sequence_as(signature, tensors))

    archive = keras.export.ExportArchive()
    for tracked in _tracked(model):
        archive.track(tracked)
    components = {name: spec for part in parts for name, spec in part.items()}
    with tracing():
        serve = _traced(call, list(keras.tree.pack_sequence_as(signature, specs)))
        serving_default = _traced(call_by_components, [components])
    archive.add_endpoint("serve", serve)
    archive.add_endpoint("serving_default", serving_default)
    with model_files.export_draft(filepath) as draft:
        archive.write_out(draft, verbose=verbose)


def _tracked(model: keras.Model) -> Iterator[Any]:
    """Yields the objects that may have lookup tables; Keras finds variables itself.

    Models are left out, because Keras also calls a tracked model with dense inputs.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.Model):
            resources = tf.saved_model.experimental.TrackableResource
            yield from (value for value in vars(layer).values() if isinstance(value, resources))
        elif layer.built:
            yield layer


def _traced(function: Callable[..., Any], signature: list[Any]) -> Any:
    traced = tf.function(function, input_signature=signature, autograph=False)
    traced.get_concrete_function()
    return traced


def _spec_of(tensor: Any) -> Any:
    """Returns the specification of an input, a KerasTensor."""
    shape = [None, *tensor.shape[1:]]
    if getattr(tensor, "ragged", False):
        # Up to the last dimension of unknown size, all dimensions have row splits.
        rank = max((i for i, size in enumerate(shape) if i and size is None), default=1)
        return tf.RaggedTensorSpec(shape, tensor.dtype, getattr(tensor, "ragged_rank", None) or rank)
    if getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, tensor.dtype)
    return tf.TensorSpec(shape, tensor.dtype)


def _checked_spec(spec: Any) -> Any:
    if isinstance(spec, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        return spec
    return tf.TensorSpec(spec.shape, spec.dtype)


def _names(model: keras.Model, signature: Any) -> list[str]:
    """Returns the names of the inputs: the model's names, or else the keys in the signature's structure."""
    count = len(keras.tree.flatten(signature))
    inputs = keras.tree.flatten(getattr(model, "_inputs_struct", None)) if isinstance(model, Functional) else []
    if len(inputs) == count:
        return [tensor.name for tensor in inputs]
    names = keras.tree.flatten(_keys(signature, ""))
    return [name or f"input_{i}" for i, name in enumerate(names)]


def _keys(structure: Any, key: str) -> Any:
    """Returns a structure with the joined keys of dicts in the places of the leaves."""
    if isinstance(structure, dict):
        named = ((name, f"{key}_{name}" if key else str(name)) for name in structure)
        return type(structure)((name, _keys(structure[name], full)) for name, full in named)
    if isinstance(structure, (list, tuple)):
        is_list = len(structure) > 1
        return [_keys(one, f"{key}_{i}" if key and is_list else key) for i, one in enumerate(structure)]
    return key


def _parts_of(name: str, spec: Any) -> _Specs:
    """Returns the specifications of an input's components, by their names."""
    if isinstance(spec, tf.SparseTensorSpec):
        rank = spec.shape.rank
        parts = {
            "indices": tf.TensorSpec([None, rank], tf.int64),
            "values": tf.TensorSpec([None], spec.dtype),
            "dense_shape": tf.TensorSpec([rank], tf.int64),
        }
    elif isinstance(spec, tf.RaggedTensorSpec):
        ragged = spec.ragged_rank
        parts = {"values": tf.TensorSpec([None, *spec.shape[ragged + 1 :]], spec.dtype)}
        for i in range(ragged):
            parts["row_splits" if ragged == 1 else f"row_splits_{i}"] = tf.TensorSpec([None], spec.row_splits_dtype)
    else:
        return {name: tf.TensorSpec(spec.shape, spec.dtype, name=name)}
    return {f"{name}_{part}": tf.TensorSpec(s.shape, s.dtype, name=f"{name}_{part}") for part, s in parts.items()}


def _joined(spec: Any, components: list[tf.Tensor]) -> Any:
    """Returns an input of its components, in the order of `_parts_of`."""
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(*components)
    if isinstance(spec, tf.RaggedTensorSpec):
        # Splits that do not fit the values are an error of the request.
        return tf.RaggedTensor.from_nested_row_splits(components[0], components[1:], validate=True)
    return components[0]
