"""Models of Keras 3 that a program makes, or trains, outside of the scope; in a job of several workers.

If a model is made before the scope and trained inside, its weights become worker 0's before the first step.

If it is made inside and trained after the scope, worker 0 warns, because gradients are not exchanged there. For this,
the step counter of an optimizer that is made in a scope has a class of its own, since nothing of Keras is replaced
outside of scopes.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from keras.src import backend

from lockstep._src.collectives import ordered
from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.tables import sharded

# Whether this thread is in the `apply` of an optimizer that exchanges gradients.
exchanging: ThreadValue[bool] = ThreadValue(False)
# The attribute of variables that begin with worker 0's values.
_BEGUN = "_lockstep_has_begun"
# The name that Keras gives to the step counter of an optimizer.
_COUNTER = "iteration"


class StepCounter(backend.Variable):
    """The number of an optimizer's steps. It is not constructed: the class of a `keras.Variable` is changed to it."""

    def assign_add(self, value: Any) -> Any:
        """Counts steps; warns if an optimizer takes one without the other workers."""
        if not exchanging.value and context.world_size > 1:
            apart.warn_of_own_step("an optimizer that was made inside takes a step")
        return super().assign_add(value)


def note_made(variable: Any) -> None:
    """Registers a variable that Keras has made in a scope, with worker 0's value if it is one of a model."""
    if context.world_size == 1 or context.options.mode == "infer":
        return
    setattr(variable, _BEGUN, True)
    if type(variable) is backend.Variable and variable.name == _COUNTER:
        variable.__class__ = StepCounter


def run_pass(method: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a model's `fit`, `evaluate` or `predict`, after its weights have become worker 0's."""
    counters = set(map(id, model.metrics_variables))
    slots = getattr(getattr(model, "optimizer", None), "variables", [])
    begin_as_worker_0s([*(v for v in model.variables if id(v) not in counters), *slots])
    return method(model, *args, **kwargs)


def begin_as_worker_0s(variables: Iterable[Any]) -> None:
    """Gives worker 0's values to the variables that were made outside of a scope; for each variable once.

    All workers call this together, with several workers only.

    Args:
      variables: Keras' variables. Those without values of floating point, counters of metrics, and sharded tables keep
        their own values.
    """
    made_outside = [v for v in {id(v): v for v in variables}.values() if _is_own(v)]
    if not made_outside:
        return
    with tf.init_scope():  # a step may be traced at this moment
        values = ordered.broadcast([v._value.read_value() for v in made_outside], root=0, name="weights_of_worker_0")
        for variable, value in zip(made_outside, values, strict=True):
            variable._value.assign(value)
            setattr(variable, _BEGUN, True)


def _is_own(variable: Any) -> bool:
    value = getattr(variable, "_value", None)
    return (
        isinstance(variable, backend.Variable)
        and isinstance(value, tf.Variable)
        and not getattr(variable, _BEGUN, False)
        and tf.as_dtype(variable.dtype).is_floating
        and getattr(variable, "synchronization", None) != "on_read"
        and not sharded.is_sharded(value)
    )
