"""Replicated variables start on all workers with worker 0's initial value."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables import sharded

# The collection of the variables whose own initializer already assigns worker 0's value.
_INITIALIZED_FROM_WORKER_0 = "lockstep/begin_as_worker_0s"

# The types of the operations with which TensorFlow initializes variables; their inputs are (variable, value).
_ASSIGN = ("Assign", "AssignVariableOp")


class EagerVariables(NamedTuple):
    """Functions about variables that are made eagerly; only Keras 3 may make such variables in a scope.

    Attributes:
      is_making: returns whether Keras 3 is making a variable in this thread.
      initializes_from_worker_0: takes the arguments of a variable's creator; returns whether the variable starts with
        worker 0's value.
    """

    is_making: Callable[[], bool]
    initializes_from_worker_0: Callable[[dict[str, Any]], bool]


_eager: EagerVariables | None = None


def allow_eager(variables: EagerVariables) -> None:
    """Registers the functions of Keras 3, a layer above this one, whose eager variables are replicated."""
    global _eager
    _eager = variables


def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Creates a replicated variable. Any initialization, at any time, gives it worker 0's initial value."""
    if not _is_replicated(kwargs):
        return next_creator(**kwargs)
    if tf.executing_eagerly():
        return _create_eagerly(next_creator, **kwargs)
    variable = next_creator(**kwargs)
    _initialize_from_worker_0(variable)
    return variable


def create_in_function(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Creates a variable while a `tf.function` is traced.

    Raises:
      NotImplementedError: the program, not Keras 3, makes the variable in a function of an eager program.
    """
    if tf.compat.v1.executing_eagerly_outside_functions() and _is_replicated(kwargs):
        _check_is_of_keras(kwargs)
    return next_creator(**kwargs)


def _is_replicated(kwargs: dict[str, Any]) -> bool:
    """Returns whether a variable is replicated in a job of several workers; `kwargs` are its creator's arguments."""
    collections = kwargs.get("collections")
    is_alone = context.world_size == 1 or context.options.mode == "infer"
    is_local = collections and tf.compat.v1.GraphKeys.GLOBAL_VARIABLES not in collections
    is_copy = kwargs.get("initial_value") is None or kwargs.get("variable_def") is not None
    return not (is_alone or is_local or is_copy)


def initialize_all_from_worker_0() -> None:
    """Makes later initializations of the graph's replicated variables assign worker 0's values.

    This function is for programs that train without a scope. In a scope, all replicated variables have this property.
    """
    for variable in _replicated(tf.compat.v1.global_variables()):
        _initialize_from_worker_0(variable)


def _initialize_from_worker_0(variable: tf.Variable) -> None:
    assign = getattr(variable, "_initializer_op", None)
    if assign is not None and assign.type in _ASSIGN and variable.dtype.size:
        variable._initializer_op = _assign_of_worker_0(assign)
        assign.graph.add_to_collection(_INITIALIZED_FROM_WORKER_0, variable)


def _create_eagerly(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Creates an eager variable of Keras 3 with worker 0's value.

    Raises:
      NotImplementedError: the program, not Keras 3, makes an eager variable.
    """
    initializes_from_worker_0 = _check_is_of_keras(kwargs).initializes_from_worker_0
    variable = next_creator(**kwargs)
    if initializes_from_worker_0(kwargs):
        name = f"initial_{kwargs.get('name') or 'value'}"
        variable.assign(ordered.broadcast(variable.read_value(), root=0, name=name))
    return variable


def _check_is_of_keras(kwargs: dict[str, Any]) -> EagerVariables:
    """Returns the functions of Keras 3, if it makes the variable; `kwargs` are its creator's arguments.

    Raises:
      NotImplementedError: the program makes the variable.
    """
    if _eager is not None and _eager.is_making():
        return _eager
    name = kwargs.get("name")
    instead = (
        "Use keras.Variable, or a layer's add_weight, outside of a tf.function, and train it with an optimizer of "
        "Keras: such variables begin with worker 0's value and stay equal. Make variables of only this worker before "
        "the scope"
    )
    if _has_keras_2():
        instead = (
            "This program has loaded Keras 2 (TF_USE_LEGACY_KERAS=1, or TensorFlow before 2.16), whose models a scope "
            "trains in graphs of TensorFlow 1 only. Build the model with Keras 3, and one of TensorFlow Recommenders "
            "with keras_rs. Or leave the scope out and train the Keras 2 model with Horovod's interface, which "
            "replicates all tables: hvd.init(), hvd.DistributedOptimizer and "
            "BroadcastGlobalVariablesCallback (docs/keras.md, Keras 2 and TensorFlow Recommenders)"
        )
    if name == "save_counter":
        instead = "It belongs to a tf.train.Checkpoint; use save_weights of the model, or model.save"
    raise NotImplementedError(
        (f"variable '{name}'" if name else "a tf.Variable")
        + f": inside a scope a job of {context.world_size} workers trains graphs, or models of Keras 3, and this "
        f"variable is made eagerly, so its values would differ between workers. {instead}. In a program of TensorFlow "
        "1, build a tf.Graph, call tf.compat.v1.disable_eager_execution() first, or start it with --tf1"
    )


def _has_keras_2() -> bool:
    """Returns whether the program has loaded Keras 2, and no Keras 3."""
    versions = [getattr(sys.modules.get(name), "__version__", "") for name in ("tf_keras", "keras")]
    return any(v.startswith("2.") for v in versions) and not versions[1].startswith("3.")


def _assign_of_worker_0(assign: tf.Operation) -> tf.Operation:
    """Returns an operation that assigns worker 0's value in place of this worker's.

    The variable's `initial_value` remains this worker's own value. TensorFlow reads it, in a conditional, for variables
    that might not be initialized, such as the global step. Not all workers run these steps, so they must not exchange.
    """
    target, value = assign.inputs
    with tf.init_scope(), tf.name_scope(f"{assign.name}_of_worker_0"):
        value = ordered.broadcast(value, root=0)
        if assign.type == "AssignVariableOp":
            return tf.raw_ops.AssignVariableOp(resource=target, value=value)
        return tf.raw_ops.Assign(ref=target, value=value, validate_shape=assign.get_attr("validate_shape")).op


def intercept_initializers(interception: Interception) -> None:
    """Makes `variables_initializer` and `global_variables_initializer` give all workers the same values.

    This concerns variables that were made before the scope was entered. Variables that are made in a scope have
    initializers that assign worker 0's value.
    """

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(var_list: Sequence[tf.Variable], name: str = "init") -> Any:
            replicated = _replicated(var_list)
            if not replicated:
                return original(var_list, name=name)
            initialized = original(var_list, name=f"{name}_local")
            with tf.control_dependencies([initialized]):
                values = [v.read_value() for v in replicated]
            sent = ordered.broadcast(values, root=0, name=f"{name}_broadcast")
            assigned = [v.assign(value, read_value=False) for v, value in zip(replicated, sent, strict=True)]
            return tf.group(initialized, *assigned, name=name)

        return wrapped

    interception.replace(symbols.VARIABLES_INITIALIZER, replace)


def _replicated(var_list: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Returns the replicated ones among the variables, except those whose initializers assign worker 0's value."""
    if context.world_size == 1 or tf.executing_eagerly():
        return []
    by_id = {id(v) for v in tf.compat.v1.global_variables()}
    by_id -= {id(v) for v in tf.compat.v1.get_collection(_INITIALIZED_FROM_WORKER_0)}
    return [v for v in var_list if id(v) in by_id and not sharded.is_sharded(v)]
