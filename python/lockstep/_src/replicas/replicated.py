"""Variables that all workers hold begin as worker 0's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import variables as tf_variables

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables import sharded

# The variables of a graph whose own initializer gives worker 0's value.
_BEGINS_AS_WORKER_0S = "lockstep/begin_as_worker_0s"

# What TensorFlow initializes variables with: operations of (variable, value).
_ASSIGN = ("Assign", "AssignVariableOp")


class EagerVariables(NamedTuple):
    """Questions about variables that are made eagerly, which only those of Keras 3 may be.

    Attributes:
      is_making: whether this thread makes a variable of Keras 3.
      begins_as_worker_0s: whether the variable with these arguments of its creator begins as worker 0's.
    """

    is_making: Callable[[], bool]
    begins_as_worker_0s: Callable[[dict[str, Any]], bool]


_eager: EagerVariables | None = None


def allow_eager(variables: EagerVariables) -> None:
    """Registers Keras 3, which lies above: variables that it makes eagerly are held by all workers."""
    global _eager
    _eager = variables


def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Makes a variable that all workers hold, whose initial value is worker 0's, whatever initializes it and when."""
    collections = kwargs.get("collections")
    initial_value = kwargs.get("initial_value")
    is_alone = context.world_size == 1 or context.options.mode == "infer"
    is_local = collections and tf.compat.v1.GraphKeys.GLOBAL_VARIABLES not in collections
    if is_alone or is_local or initial_value is None or kwargs.get("variable_def") is not None:
        return next_creator(**kwargs)
    if tf.executing_eagerly():
        return _create_eagerly(next_creator, **kwargs)
    variable = next_creator(**kwargs)
    _begin_as_worker_0s(variable)
    return variable


def begin_alike() -> None:
    """Makes the variables of the graph that all workers hold begin as worker 0's when they are initialized from now on.

    For programs that train without a scope. In one, all variables do.
    """
    for variable in _replicated(tf.compat.v1.global_variables()):
        _begin_as_worker_0s(variable)


def _begin_as_worker_0s(variable: tf.Variable) -> None:
    assign = getattr(variable, "_initializer_op", None)
    if assign is not None and assign.type in _ASSIGN and variable.dtype.size:
        variable._initializer_op = _assign_of_worker_0(assign)
        assign.graph.add_to_collection(_BEGINS_AS_WORKER_0S, variable)


def _create_eagerly(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Makes a variable of Keras 3, whose value is worker 0's from the beginning."""
    if _eager is None or not _eager.is_making():
        raise NotImplementedError(
            f"variable '{kwargs.get('name')}': inside a scope a job of {context.world_size} workers trains graphs, or "
            "models of Keras 3, and this variable is made eagerly, where nothing would keep the workers in step. Build "
            "the program in a tf.Graph, call tf.compat.v1.disable_eager_execution() first, or start it with --tf1"
        )
    variable = next_creator(**kwargs)
    if _eager.begins_as_worker_0s(kwargs):
        variable.assign(ordered.broadcast(variable.read_value(), root=0))
    return variable


def _assign_of_worker_0(assign: tf.Operation) -> tf.Operation:
    """The operation that assigns worker 0's value in place of this worker's.

    The variable's `initial_value` stays this worker's: TensorFlow reads variables that might not be initialized through
    a conditional on that value (the global step, for one), in steps that not all workers take.
    """
    target, value = assign.inputs
    with tf.init_scope(), tf.name_scope(f"{assign.name}_of_worker_0"):
        value = ordered.broadcast(value, root=0)
        if assign.type == "AssignVariableOp":
            return tf.raw_ops.AssignVariableOp(resource=target, value=value)
        return tf.raw_ops.Assign(ref=target, value=value, validate_shape=assign.get_attr("validate_shape")).op


def intercept_initializers(interception: Interception) -> None:
    """Makes `variables_initializer`, and with it `global_variables_initializer`, leave the same values everywhere.

    For variables that were made before the scope was entered; others see to it themselves.
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
            values = ordered.broadcast(values, root=0, name=f"{name}_broadcast")
            assigned = [v.assign(value, read_value=False) for v, value in zip(replicated, values, strict=True)]
            return tf.group(initialized, *assigned, name=name)

        return wrapped

    for owner in (tf_variables, tf.compat.v1, tf.compat.v1.initializers):
        name = "variables" if owner is tf.compat.v1.initializers else "variables_initializer"
        interception.replace(owner, name, replace)


def _replicated(var_list: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Those of the variables whose values all workers share: neither local to a worker nor sharded."""
    if context.world_size == 1 or tf.executing_eagerly():
        return []
    by_id = {id(v) for v in tf.compat.v1.global_variables()}
    by_id -= {id(v) for v in tf.compat.v1.get_collection(_BEGINS_AS_WORKER_0S)}
    return [v for v in var_list if id(v) in by_id and not sharded.is_sharded(v)]
