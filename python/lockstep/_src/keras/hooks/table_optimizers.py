"""Tables that have optimizers of their own, which the `TableConfig`s of Keras RS name.

The `DistributedEmbedding` of Keras RS gives these optimizers only to TPUs. On other devices it leaves its tables to
the model's optimizer. A scope uses a table's own optimizer on each device:

| replaced | result |
| --- | --- |
| `DistributedEmbedding._default_device_init` | a dynamic table is refused by the layer to use |
| `DistributedEmbedding._default_device_build` | a table's variable gets an optimizer by its `TableConfig` |
| `BaseOptimizer.build` | the model's optimizer builds and saves the tables' optimizers |
| `add_variable_from_reference` (`variables.py`) | the model's optimizer has no slots for such tables |
| `_backend_apply_gradients` | a table's gradient, exchanged and unscaled, goes to its own optimizer |
| `DistributedEmbedding._default_device_get_embedding_tables` | it returns whole tables |

Each table has an optimizer object of its own, a copy of the one in its `TableConfig`. So one object may be given to
several configurations.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras

from lockstep._src.gradients import optimizer_copies
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around

# The attribute of a variable of TensorFlow that holds its own optimizer.
_OWN = "_lockstep_optimizer"


def own_optimizer(variable: Any) -> Any:
    """Returns the optimizer of one variable of Keras or TensorFlow; None for most variables."""
    return getattr(getattr(variable, "_value", variable), _OWN, None)


def intercept_table_optimizers(interception: Interception) -> None:
    """Makes optimizers of Keras 3 leave some tables to the tables' own optimizers during the interception."""
    has_keras_rs = "keras_rs" in sys.modules
    if has_keras_rs:
        interception.replace(symbols.KERAS_RS_INIT, around(_init_layer))
        interception.replace(symbols.KERAS_RS_BUILD, around(_build_layer))
        interception.replace(symbols.KERAS_RS_TABLES, around(_whole_tables))

    def build(build: Callable[..., None], self: Any, variables: Sequence[Any]) -> None:
        if "keras_rs" in sys.modules and not has_keras_rs:
            raise RuntimeError(
                f"{self.name}: keras_rs was imported inside the scope, so its tables do not use the optimizers of "
                "their TableConfigs; import keras_rs before the scope"
            )
        _build(build, self, variables)

    interception.replace(symbols.KERAS_BUILD, around(build))
    interception.replace(symbols.KERAS_BACKEND_APPLY, around(_apply))


def _init_layer(init: Callable[..., None], layer: Any, feature_configs: Any, table_stacking: Any) -> None:
    """Makes the layers of the tables; refuses dynamic tables in the layer of Keras RS itself."""
    for feature in feature_configs.values():
        if feature.table.vocabulary_size is None:
            raise ValueError(
                f"{layer.name}: table '{feature.table.name}' has vocabulary_size None, wanted a number of rows; use "
                "lockstep.keras.DistributedEmbedding for dynamic tables"
            )
    init(layer, feature_configs, table_stacking)


def _build_layer(build: Callable[..., None], layer: Any, input_shapes: Any) -> None:
    """Builds the tables of a `DistributedEmbedding`, and gives each of them an optimizer."""
    build(layer, input_shapes)
    for path, feature in layer._placement_to_path_to_feature_config["default_device"].items():
        table = layer._default_device_embedding_layers[path].embeddings._value
        if own_optimizer(table) is None:
            setattr(table, _OWN, _new_optimizer(feature.table))


def _new_optimizer(table: Any) -> Any:
    """Returns a copy of the optimizer that a `TableConfig` names."""
    optimizer = optimizer_copies.copied(keras.optimizers.get(table.optimizer))
    # The name begins the names of slots in checkpoints, so it must be the same in each process.
    optimizer.name = f"{table.name}_{type(optimizer).__name__.lower()}"
    for variable in optimizer.variables:
        variable._path = f"{optimizer.name}/{variable.name}"
    return optimizer


def _build(build: Callable[..., None], self: Any, variables: Sequence[Any]) -> None:
    """Builds an optimizer, and the variables' own optimizers, which become a part of it."""
    build(self, variables)
    pairs = [(own_optimizer(v), v) for v in variables if own_optimizer(v) not in (None, self)]
    for optimizer, variable in pairs:
        if not optimizer.built:
            optimizer.build([variable])
    if pairs:
        # Keras and `tf.train.Checkpoint` save optimizers in the attributes of an optimizer.
        self.table_optimizers = [optimizer for optimizer, _ in pairs]


def _apply(apply: Callable[..., None], self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
    """Applies gradients; a variable with its own optimizer is updated by it."""
    rest = []
    for gradient, variable in zip(grads, trainable_variables, strict=True):
        optimizer = own_optimizer(variable)
        if optimizer in (None, self):
            rest.append((gradient, variable))
        else:
            optimizer.apply([gradient], [variable])
    if rest:
        apply(self, *map(list, zip(*rest, strict=True)))


def _whole_tables(get_tables: Callable[..., Any], layer: Any) -> dict[str, Any]:
    """Returns the tables by name. All workers call this, because sharded tables are gathered.

    A dynamic table has no matrix, and raises NotImplementedError.
    """
    layers = {
        feature.table.name: layer._default_device_embedding_layers[path]
        for path, feature in layer._placement_to_path_to_feature_config["default_device"].items()
    }
    return {name: keras.ops.convert_to_tensor(found.embeddings.numpy()) for name, found in layers.items()}
