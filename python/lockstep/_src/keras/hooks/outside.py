"""Models of Keras 3 that a program makes, or trains, outside of the scope; in a job of several workers.

If a model is made before the scope and trained inside, its weights become worker 0's before the first step. Its tables
are replicated, also in an `embedding_scope()`: worker 0 warns of it once. It also advises once to shard a large table.

If it is made inside and trained after the scope, worker 0 warns, because gradients are not exchanged there. For this,
the step counter of an optimizer that is made in a scope has a class of its own, since nothing of Keras is replaced
outside of scopes.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import tensorflow as tf
from keras.src import backend

from lockstep._src.collectives import ordered
from lockstep._src.engine import apart
from lockstep._src.engine.context import context
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.tables import sharded
from lockstep._src.tables.sharded.sharding_rules import ShardingRules

# Whether this thread is in the `apply` of an optimizer that exchanges gradients.
exchanging: ThreadValue[bool] = ThreadValue(False)
# The attribute of variables that begin with worker 0's values.
_BEGUN = "_lockstep_has_begun"
# The attribute of variables that were made in an `embedding_scope()`.
_IN_EMBEDDING_SCOPE = "_lockstep_in_embedding_scope"
# A table of at least this many rows that was made outside of any `embedding_scope()` is reported.
_MANY_ROWS = 100_000
# Optimizers of Keras that update all rows of a table in each step.
_DENSE = ("Adam", "AdamW", "Adamax", "Nadam")
_REMEDY = "Build the layer inside of `with lockstep.embedding_scope():` to shard it"
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
    setattr(variable, _IN_EMBEDDING_SCOPE, context.options.sharding)
    if type(variable) is backend.Variable and variable.name == _COUNTER:
        variable.__class__ = StepCounter


def run_pass(method: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a model's `fit`, `evaluate` or `predict`, after its weights have become worker 0's."""
    _advise(model)
    counters = set(map(id, model.metrics_variables))
    slots = getattr(getattr(model, "optimizer", None), "variables", [])
    begin_as_worker_0s([*(v for v in model.variables if id(v) not in counters), *slots])
    return method(model, *args, **kwargs)


class _Advice:
    """The lines that this process has shown."""

    shown: ClassVar[set[str]] = set()


def _advise(model: Any) -> None:
    """Logs once, on worker 0, that tables of a model are replicated because of the place where they were made."""
    if context.rank != 0:
        return
    rules = ShardingRules.from_options()
    for variable in model.trainable_variables:
        shape = tf.TensorShape(getattr(variable, "shape", None))
        is_table = (rules or ShardingRules()).is_table(variable.path, True, variable.dtype, shape)
        if not is_table or getattr(variable, _IN_EMBEDDING_SCOPE, False) or sharded.is_sharded(variable._value):
            continue
        rows = shape.as_list()[0]
        table = f"The table '{variable.path}' of {rows} rows was made"
        if rules is not None and not getattr(variable, _BEGUN, False) and rows > rules.replicate_up_to_rows:
            line = f"{table} before the scope, so embedding_scope() has no effect on it: each worker has all rows"
            _show_once("before", f"{line}. {_REMEDY} (docs/keras.md).")
        elif rows >= _MANY_ROWS:
            classes = [cls.__name__ for cls in type(getattr(model, "optimizer", None)).__mro__]
            dense = "LazyAdam" not in classes and next((name for name in classes if name in _DENSE), None)
            line = f"{table} outside of embedding_scope(): each worker has all rows and their slots"
            updates = f", and {dense} updates all of them in each step" if dense else ""
            lazy = "; lockstep.keras.LazyAdam updates only the rows of a batch" if dense else ""
            _show_once("large", f"{line}{updates}. {_REMEDY}{lazy} (docs/keras.md).")


def _show_once(kind: str, line: str) -> None:
    if kind not in _Advice.shown:
        _Advice.shown.add(kind)
        tf.compat.v1.logging.warning("%s", line)


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
