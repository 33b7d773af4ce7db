"""Variables of Keras 3 layers: sharded ones, and the slots that Keras' optimizers create for them.

A `keras.Variable` holds a variable of TensorFlow. If that is a sharded table, the `keras.Variable` becomes a
`RowShardedVariable`: optimizers see the shard, while code that loads, saves or reads weights sees the whole table.

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import backend, initializers
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.engine.context import context
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.keras.hooks import outside, table_optimizers
from lockstep._src.replicas.replicated import EagerVariables, allow_eager
from lockstep._src.tables.placement import planner
from lockstep._src.tables.sharded import RowShardedTable, Shard, counts, initial_values, lookup_steps
from lockstep._src.tables.sharded.table import EitherShape, reading_shards


class RowShardedVariable(backend.Variable):
    """A weight of a layer whose rows are distributed over the workers, or an optimizer's slot for one.

    It is not constructed: the class of a `keras.Variable` is changed to this one. `numpy()` and `np.array(...)` return
    the whole table, and all workers must call them; `assign` takes the whole table or this worker's rows.
    """

    _slot_shard: Shard | None = None  # set for slots
    _whole: np.ndarray | None = None  # see `whole_on_chief`

    @property
    def shard(self) -> Shard:
        """The rows that this worker holds."""
        return self._slot_shard or self._value.shard

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the shard, which also equals the shape of the whole table."""
        local = self._value.shape
        return EitherShape(local, tf.TensorShape([self.shard.rows, *local[1:]]))

    def numpy(self) -> np.ndarray:
        """Returns the whole table. All workers must call it."""
        if self._whole is not None:
            return self._whole
        local = self._value.local_value() if isinstance(self._value, RowShardedTable) else self._value.value()
        return np.asarray(local if self.shard.world_size == 1 else lookup_steps.gather_table(local, self.shard))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del copy
        return np.asarray(self.numpy(), dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        if self._whole is not None:
            return tf.convert_to_tensor(self._whole, dtype, name=name)
        return super().__tf_tensor__(dtype, name)

    def assign(self, value: Any) -> Any:
        """Assigns this worker's rows from a value of these rows, or of the whole table."""
        value = self._convert_to_tensor(value, dtype=self._dtype)
        if value.shape != self._value.shape and value.shape == self.shape:
            value = self.shard.pick(value)
        if value.shape != self._value.shape:
            raise ValueError(
                f"{self.path}: got a value of shape {value.shape}, wanted {self.shape}, or the shape of the whole table"
            )
        self._value.assign(value)
        return value


def sharded_variables(variables: Iterable[Any]) -> list[RowShardedVariable]:
    """Returns the sharded ones among Keras' variables, each once."""
    return list({id(v): v for v in variables if isinstance(v, RowShardedVariable)}.values())


@contextlib.contextmanager
def whole_on_chief(tables: Iterable[RowShardedVariable]) -> Iterator[None]:
    """Gathers the whole tables on worker 0, so that it may read them by itself in the block. All workers call this."""
    tables = list(tables)
    try:
        for table in tables:
            whole = table.numpy()
            table._whole = whole if context.rank == 0 else None
        yield
    finally:
        for table in tables:
            table._whole = None


# Whether this thread is creating variables of Keras 3, and whether those have each worker's own values.
_making: ThreadValue[bool] = ThreadValue(False)
_making_local: ThreadValue[bool] = ThreadValue(False)


def is_making() -> bool:
    """Returns whether this thread is creating a variable of Keras 3."""
    return _making.value


def local_initial_values() -> contextlib.AbstractContextManager[None]:
    """Makes variables of Keras that are created inside start with this worker's own values, without any exchange."""
    return _making_local.holding(True)


def initializes_from_worker_0(kwargs: dict[str, Any]) -> bool:
    """Returns whether an eager variable should start with worker 0's value; `kwargs` are its creator's.

    Variables that are local to a worker should not: counters of metrics, seeds, and slots of its shards.
    """
    initial_value = kwargs.get("initial_value")
    dtype = tf.as_dtype(kwargs.get("dtype") or getattr(initial_value, "dtype", None) or tf.float32)
    on_read = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
    return dtype.is_floating and not on_read and not _making_local.value


allow_eager(EagerVariables(is_making, initializes_from_worker_0))


def intercept_variables(interception: Interception) -> None:
    """Makes layers, lookups and optimizers of Keras 3 work with sharded tables during the interception."""
    for hook in symbols.KERAS_INITIALIZE:
        interception.replace(hook, around(_initialize))
    counts.intercept_counts(interception, symbols.KERAS_COUNTS)
    interception.replace(symbols.FUNCTION_INITIALIZE, around(_trace_first))
    interception.replace(symbols.KERAS_TAKE, around(_take))
    interception.replace(symbols.KERAS_ADD_SLOT, around(_add_slot))
    interception.replace(symbols.KERAS_BACKEND_UPDATE, around(_update_step))


@contextlib.contextmanager
def _outside_of_functions() -> Iterator[None]:
    """Makes the scope's creator create variables eagerly inside the block, even while a `tf.function` is traced.

    `tf.init_scope` by itself does not suffice. The function's graph stays the default graph in it, and the graph's
    variable creator, which calls no other creator, would create the variables.
    """
    with tf.init_scope():
        _, creator = min(ops.get_default_graph()._variable_creator_stack, key=lambda entry: entry[0])

        def create(next_creator: Callable[..., Any], **kwargs: Any) -> tf.Variable:
            del next_creator
            return creator(functools.partial(resource_variable_ops.default_variable_creator_v2, None), **kwargs)

        with tf.variable_creator_scope(create) if tf.executing_eagerly() else contextlib.nullcontext():
            yield


class _Lifted(threading.local):
    """The number of variables that this thread has made outside of the functions that it was tracing."""

    count = 0


_lifted = _Lifted()


def _trace_first(
    initialize: Callable[..., None], function: Any, args: Any, kwds: Any, add_initializers_to: Any = None
) -> None:
    """Traces a function for its first call; a second time if the trace made variables.

    TensorFlow does so as well, but it does not see variables that are made outside of the function's graph. The first
    trace has code that no later step may run: an optimizer that is not built scales the loss by a constant.
    """
    before = _lifted.count
    initialize(function, args, kwds, add_initializers_to)
    if _lifted.count > before and not function._created_variables:
        function._function_cache.clear()
        initialize(function, args, kwds, add_initializers_to)


def _initialize(initialize: Callable[..., Any], self: Any, value: Any) -> None:
    # A layer may be built while a step is traced. If its initial value is a tensor of that graph, the graph itself
    # initializes the variable.
    if tf.is_tensor(value) and not hasattr(value, "numpy") and (constant := tf.get_static_value(value)) is not None:
        value = constant
    is_of_graph = tf.is_tensor(value) and not hasattr(value, "numpy")
    if not is_of_graph and not tf.executing_eagerly():
        _lifted.count += 1
    with _making.holding(True), contextlib.nullcontext() if is_of_graph else _outside_of_functions():
        initialize(self, value)
    if isinstance(self._value, RowShardedTable):
        self.__class__ = RowShardedVariable
    outside.note_made(self)


def _take(take: Callable[..., Any], x: Any, indices: Any, axis: int | None = None) -> Any:
    """Looks up rows of a sharded table. `keras.ops.take` would read the whole table for its shape."""
    if not isinstance(x, RowShardedVariable) or axis not in (0, -x.ndim):
        return take(x, indices, axis)
    table, rows = x._value, x.shard.rows

    def from_the_end(ids: tf.Tensor) -> tf.Tensor:
        return tf.where(ids < 0, ids + tf.cast(rows, ids.dtype), ids)

    if isinstance(indices, tf.SparseTensor):
        dense_shape = indices.shape
        indices = indices.with_values(from_the_end(indices.values))
        found = tf.nn.safe_embedding_lookup_sparse(table, tf.sparse.expand_dims(indices, axis=-1), default_id=0)
        found.set_shape(dense_shape + found.shape[dense_shape.rank :])
    elif isinstance(indices, tf.RaggedTensor):
        found = tf.nn.embedding_lookup(table, indices.with_flat_values(from_the_end(indices.flat_values)))
    else:
        found = table.sparse_read(from_the_end(tf.convert_to_tensor(indices)))
    return tf.cast(found, x.dtype)


def _add_slot(
    add_slot: Callable[..., Any], self: Any, reference_variable: Any, name: Any = None, initializer: Any = "zeros"
) -> Any:
    if table_optimizers.own_optimizer(reference_variable) not in (None, self):
        return None  # Keras has no slots for variables that an optimizer does not update.
    if not isinstance(reference_variable, RowShardedVariable):
        return add_slot(self, reference_variable, name=name, initializer=initializer)
    with local_initial_values():
        slot = add_slot(self, reference_variable, name=name, initializer=_without_temporaries(initializer))
    slot.__class__ = RowShardedVariable
    slot._slot_shard = reference_variable.shard
    planner.note_slot(
        reference_variable._value.logical_name, slot._value.shape[1:].num_elements() * slot._value.dtype.size
    )
    return slot


def _without_temporaries(initializer: Any) -> Any:
    """Returns an initializer of a slot that needs no memory but the slot's: Keras multiplies a constant by ones."""
    draw = initializers.get(initializer)
    if not callable(draw):
        return initializer

    def computed(shape: Any, dtype: Any = None) -> tf.Tensor:
        shape = tf.TensorShape(shape)
        return initial_values.all_rows(lambda: draw(shape.as_list(), dtype=dtype), shape, dtype, "slot")()

    return computed


def _update_step(update_step: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Applies the shard's gradients to variables; some optimizers read a variable for this."""
    with reading_shards():
        update_step(*args, **kwargs)
