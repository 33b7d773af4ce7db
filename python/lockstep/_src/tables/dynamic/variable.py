"""The variable class of a dynamic table."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.python.eager import tape
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.engine.host_memory import on_host
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.tables.dynamic import handles, initial_rows, lookups, matrices, modes, serialized, table_options
from lockstep._src.tables.sharded.lookup_steps import DistinctRows

_KEY_DTYPES = (tf.int64, tf.int32, tf.string)
_VALUE_DTYPES = (tf.float32, tf.float16, tf.bfloat16)
# The operation takes a negative number for the step after the present one.
_NEXT_STEP = -1
# The collection of a graph's dynamic tables.
TABLES = "lockstep/dynamic_tables"


class Export(NamedTuple):
    """All admitted keys of a table on this worker, in ascending order.

    Attributes:
      keys: [N] int64 or string.
      values: [N, D] of the table's type.
      versions: [N] int64, the step in which each key was last seen; -1 if the table doesn't record it.
      freqs: [N] int64, how often each key was seen; -1 if the table doesn't record it.
    """

    keys: tf.Tensor
    values: tf.Tensor
    versions: tf.Tensor
    freqs: tf.Tensor


_of_one_row = ThreadValue(False)


def shapes_of_one_row() -> contextlib.AbstractContextManager[None]:
    """Makes tables report the shape [1, D] inside the block, for optimizers that ask for the shape of a slot."""
    return _of_one_row.holding(True)


def is_asked_for_one_row() -> bool:
    """Returns whether this is inside of a `shapes_of_one_row` block."""
    return _of_one_row.value


def dynamic_tables(graph: tf.Graph | None = None) -> list[DynamicVariable]:
    """Returns the dynamic tables of a graph (the default one), in the order in which they were made."""
    return (graph or tf.compat.v1.get_default_graph()).get_collection(TABLES)


def is_dynamic(variable: Any) -> bool:
    """Returns whether a variable is a dynamic table."""
    return isinstance(variable, DynamicVariable) and variable.is_dynamic


# This keeps the collection of tables out of a MetaGraph.
ops.register_proto_function(TABLES, proto_type=variable_pb2.VariableDef, to_proto=lambda v, export_scope=None: None)


class DynamicVariable(matrices.NotAMatrix, resource_variable_ops.BaseResourceVariable):
    """A table of embeddings that grows with its keys: any int64, int32 or string has a row of D values.

    `tf.nn.embedding_lookup`, `embedding_lookup_sparse`, `safe_embedding_lookup_sparse` and `tf.gather` accept it as a
    table of unknown length. Its gradient is `tf.IndexedSlices` with numbers of rows, -1 for keys that are not admitted.
    Methods that only make sense for a matrix (its value, assignments, slices) raise NotImplementedError. `modes.py`
    says which lookups add new keys.

    In a job of several workers each key has an owner (option `placement`), and lookups fetch rows from their owners.
    Therefore all workers must make the same lookups. Statistics count this worker's keys only.

    Args:
      name: the name of the table; initial values depend on it.
      dim: the dimension D.
      key_dtype: the type of the keys: int64, int32 or string.
      dtype: the type of the rows: float32, float16 or bfloat16. Updates are computed in float32 and rounded
        stochastically to 16 bits.
      initializer: see `initial_rows.initial_of`.
      trainable: whether it joins `TRAINABLE_VARIABLES`, and tapes watch it.
      collections: the graph's collections that it joins; None: `GLOBAL_VARIABLES`.
      option: see `EmbeddingVariableOption`.

    Raises:
      TypeError: an argument or an option has a wrong type.
      ValueError: an argument or an option has a wrong value.
    """

    is_dynamic = True
    # Whether its initializer decides about its rows.
    is_initialized_here = True
    # Whether lookups with a combiner may be made of this library's operations; exported tables need TensorFlow's.
    fuses_lookups = True
    # Whether gradients of lookups are plain sums over the workers, regardless of the options.
    sums_gradients = False
    # The indices of a gradient's slices: "number", numbers of rows, with which updates search no key again; or "key".
    gradients_by = "number"

    def __init__(
        self,
        name: str,
        dim: int,
        key_dtype: Any = tf.int64,
        dtype: Any = tf.float32,
        initializer: Any = None,
        trainable: bool = True,
        collections: Any = None,
        option: table_options.EmbeddingVariableOption | None = None,
    ) -> None:
        option = option or table_options.EmbeddingVariableOption()
        self._key_dtype, row_type = _checked_types(name, dim, key_dtype, dtype)
        _check_placement(name, option.placement.owner, self._key_dtype)
        self._dim, self._option = dim, option
        self._attributes = table_options.attributes(option, context.world_size)
        if initializer is None:
            initializer = option.init_option.initializer
        with ops.init_scope():
            in_graph = not tf.executing_eagerly()
            with ops.name_scope(name, skip_on_eager=False) as scope_name:
                own_name = scope_name.removesuffix("/")
                if in_graph and all(table.logical_name != name for table in dynamic_tables()):
                    # Initial values and checkpoints depend on the table's name, which no other operation may change.
                    own_name = name
                start = initial_rows.initial_of(initializer, dim, own_name, option.init_option.default_value_dim)
                self._attributes["default_value"] = initial_rows.default_value(start, self._attributes)
                spec = handles.Spec(dim, self._key_dtype, row_type, start, self._attributes)
                handle = handles.make(own_name, scope_name, spec)
            super().__init__(
                trainable=trainable,
                shape=tf.TensorShape([None, dim]),
                dtype=row_type,
                handle=handle.tensor,
                synchronization=tf.VariableSynchronization.NONE,
                aggregation=tf.VariableAggregation.NONE,
                unique_id=handle.shared_name,
                handle_name=own_name,
                initializer_op=handle.initializer,
                is_initialized_op=handle.is_ready,
                in_graph_mode=in_graph,
            )
            self._lookups = lookups.Lookups(
                self.handle,
                self.logical_name,
                self._key_dtype,
                self._attributes,
                self.sums_gradients,
                self.gradients_by,
            )
            self._creation = handle.initializer
            if in_graph:
                self._join_graph(collections)
            else:
                self._create = handle.create
                weakref.finalize(self, handles.destroy, handle.tensor)

    def _join_graph(self, collections: Any) -> None:
        keys = tf.compat.v1.GraphKeys
        names = list(collections or [keys.GLOBAL_VARIABLES])
        if self.trainable and keys.TRAINABLE_VARIABLES not in names:
            names.append(keys.TRAINABLE_VARIABLES)
        ops.add_to_collections([*names, TABLES], self)

    @property
    def dim(self) -> int:
        """The dimension D of the rows."""
        return self._dim

    @property
    def key_dtype(self) -> tf.DType:
        """The type of the keys."""
        return self._key_dtype

    @property
    def option(self) -> table_options.EmbeddingVariableOption:
        """The options with which it was made."""
        return self._option

    @property
    def default_value(self) -> float:
        """Each element of the default row, which keys without a row read: see `modes.py`."""
        return self._attributes["default_value"]

    @property
    def logical_name(self) -> str:
        """The name of the table, the same on all workers."""
        return self._handle_name.split(":")[0]

    @property
    def shape(self) -> tf.TensorShape:
        """The shape [?, D]."""
        return tf.TensorShape([1 if _of_one_row.value else None, self._dim])

    def get_shape(self) -> tf.TensorShape:
        """Returns the shape [?, D]."""
        return self.shape

    @property
    def device(self) -> str:
        """The device of the table, in another spelling than TensorFlow's ("/CPU:0" for "/device:CPU:0").

        `embedding_lookup_sparse` reads the whole variable if its device equals the ids' device. A table must avoid
        this.
        """
        return "/CPU:0"

    @property
    def has_step(self) -> bool:
        """Whether the end of a step needs any work: to evict keys, or to record steps."""
        a = self._attributes
        evicts = any(a.get(n) for n in ("steps_to_live", "seconds_to_live", "l2_threshold", "max_keys", "max_bytes"))
        forgets = self._key_dtype == tf.string and bool(a.get("bloom_keys"))
        return evicts or forgets or a["record_version"]

    def to_proto(self, export_scope: str | None = None) -> None:
        """Returns None, so that a MetaGraph doesn't contain the table; a program would import it as a variable."""
        del export_scope

    def __repr__(self) -> str:
        return (
            f"<DynamicVariable '{self.name}' of dimension {self._dim}, keys {self._key_dtype.name}, rows "
            f"{self.dtype.name}>"
        )

    # Lookups.

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Returns rows by key.

        Args:
          indices: keys of any shape and of the table's type; int32 and int64 are both accepted for integer keys.
          name: the name of the operation.

        Returns:
          [indices..., D].

        Raises:
          TypeError: the keys have another type.
        """
        with ops.name_scope("Gather" if name is None else name), on_host():
            keys = self._checked_keys(indices)
            rows = self._lookups.rows(keys, self._begin_lookup())
            return rows if self.dtype == tf.float32 else tf.cast(rows, self.dtype)

    @property
    def has_route(self) -> bool:
        """Whether lookups exchange keys with other workers, so that errors before it have to reach all of them."""
        return self._lookups.in_job

    def distinct_rows(self, keys: Any, problem: tf.Tensor | None = None) -> DistinctRows:
        """Returns the row of each distinct key, float32, for keys as in `sparse_read`.

        Args:
          keys: keys of any shape.
          problem: see `lookup_steps.route`.
        """
        with on_host():
            keys = self._checked_keys(keys)
            return self._lookups.distinct_rows(keys, self._begin_lookup(), problem)

    def _checked_keys(self, keys: Any) -> tf.Tensor:
        keys = tf.convert_to_tensor(keys)
        if keys.dtype not in _KEY_DTYPES or (keys.dtype == tf.string) != (self._key_dtype == tf.string):
            raise TypeError(wrong_keys(f"table '{self.logical_name}'", keys.dtype, self._key_dtype))
        return keys

    def _begin_lookup(self) -> bool:
        """Returns whether a lookup that is made now is one in training; tapes then watch the table."""
        # No optimizer ends steps of a table that is not trained: it would grow for ever.
        training = modes.is_training() and self.trainable
        if training:
            tape.variable_accessed(self)
        return training

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Returns rows by key for `indices` [..., 1]; raises NotImplementedError for other shapes."""
        indices = tf.convert_to_tensor(indices)
        if tf.compat.dimension_value(indices.shape[-1]) != 1:
            self._refuse("gather_nd of elements", "look rows up and gather from them")
        return self.sparse_read(indices[..., 0], name)

    # Statistics of this worker's keys.

    def total_count(self) -> tf.Tensor:
        """Returns the number of admitted keys on this worker: int64 scalar."""
        return library.ops.lockstep_dynamic_table_count(self.handle)[0]

    def candidate_count(self) -> tf.Tensor:
        """Returns the number of keys on this worker that are counted, but not admitted yet: int64 scalar."""
        return library.ops.lockstep_dynamic_table_count(self.handle)[1]

    def memory_bytes(self) -> tf.Tensor:
        """Returns the memory of rows, slots, counts and index on this worker, in bytes: int64 scalar."""
        return library.ops.lockstep_dynamic_table_count(self.handle)[2]

    def get_dynamic_shape(self) -> tf.Tensor:
        """Returns [total_count, D], int64."""
        return tf.stack([self.total_count(), self._dim])

    def export(self) -> Export:
        """Returns all admitted keys on this worker with their rows."""
        keys, values, freqs, versions, _ = library.ops.lockstep_dynamic_table_export(
            self.handle, Tkeys=tf.string if self._key_dtype == tf.string else tf.int64, num_slots=0, slots=[]
        )
        return Export(keys, tf.cast(values, self.dtype), versions, freqs)

    def export_slots(self, *names: str) -> list[tf.Tensor]:
        """Returns slots of all admitted keys, in the order of `export`: each [N, D] float32.

        Running it raises InvalidArgumentError for a slot that the table doesn't have.
        """
        return library.ops.lockstep_dynamic_table_export(
            self.handle,
            Tkeys=tf.string if self._key_dtype == tf.string else tf.int64,
            num_slots=len(names),
            slots=list(names),
        ).slot_values

    def get_frequency(self, ids: Any) -> tf.Tensor:
        """Returns how often keys were seen in training, of `ids`' shape, int64; 0 for keys that are not there.

        Running it raises FailedPreconditionError if the table doesn't record it (`record_frequency`).
        """
        return library.ops.lockstep_dynamic_table_counts(self.handle, tf.convert_to_tensor(ids), of="frequency")

    def get_seconds(self, ids: Any) -> tf.Tensor:
        """Returns when keys were last seen in training or inserted, of `ids`' shape, int64; 0 for missing keys.

        It is in seconds since the beginning of 1970. Running it raises FailedPreconditionError if the table doesn't
        record it (`record_seconds`, or a `TimeEvict`).
        """
        return library.ops.lockstep_dynamic_table_counts(self.handle, tf.convert_to_tensor(ids), of="seconds")

    def get_version(self, ids: Any) -> tf.Tensor:
        """Returns in what step keys were last seen in training, of `ids`' shape, int64; 0 for keys that are not there.

        Running it raises FailedPreconditionError if the table doesn't record it (`record_version`).
        """
        return library.ops.lockstep_dynamic_table_counts(self.handle, tf.convert_to_tensor(ids), of="version")

    def find(self, ids: Any) -> tf.Tensor:
        """Returns the numbers of the rows of this worker's keys, of `ids`' shape, int64; -1 for keys without a row."""
        return library.ops.lockstep_dynamic_table_find(self.handle, tf.convert_to_tensor(ids))

    def contains(self, ids: Any) -> tf.Tensor:
        """Returns whether this worker has rows of keys, of `ids`' shape, bool."""
        return self.find(ids) >= 0

    def numbered(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns a gradient of the table whose indices are numbers of rows."""
        if self.gradients_by == "number":
            return gradient
        return tf.IndexedSlices(gradient.values, self.find(gradient.indices), gradient.dense_shape)

    def insert(self, keys: Any, values: Any, freqs: Any = (), versions: Any = ()) -> tf.Operation | None:
        """Inserts rows for admitted keys, or replaces the rows of keys that exist; their slots are reset.

        Args:
          keys: [N], keys of this worker. In a job, lookups would never find other workers' keys here.
          values: [N, D].
          freqs: [N] int64, how often each key was seen; may be empty.
          versions: [N] int64, the step in which each key was last seen; empty: the current step.
        """
        return library.ops.lockstep_dynamic_table_insert(
            self.handle,
            tf.convert_to_tensor(keys, None if tf.is_tensor(keys) else self._key_dtype),
            tf.cast(values, tf.float32),
            tf.cast(freqs, tf.int64),
            tf.cast(versions, tf.int64),
        )

    def evict(self, keeps_last_lookup_alone: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
        """Evicts keys of this worker by the options now, so that its budget (`BudgetEvict`) is kept.

        Running it raises FailedPreconditionError if the table has no budget.

        Args:
          keeps_last_lookup_alone: whether only keys of the last lookup stay for sure. A gradient of an earlier lookup
            must be by key then (`gradients_by`). By default the keys of this step and of the last one stay, as when a
            step ends.

        Returns:
          The evicted keys, [K] int64 or string, and their last rows, [K, D] float32.
        """
        evicted = library.ops.lockstep_dynamic_table_evict(
            self.handle,
            Tkeys=tf.string if self._key_dtype == tf.string else tf.int64,
            keeps_last_lookup_alone=keeps_last_lookup_alone,
        )
        return evicted.keys, evicted.rows

    def end_step(self, step: Any = None) -> tf.Operation | None:
        """Evicts keys by the options, and sets the step in which lookups count. Optimizers call it after their updates.

        It does nothing if no key has been looked up since the last call, unless `step` says that time has passed. So
        several optimizers after one lookup end only one step. In a graph of TensorFlow 1, outside of its loops, a run
        is one step: only the first of several calls counts.

        Args:
          step: int64, the number of the step. None or a negative number: one more than before.
        """
        return library.ops.lockstep_dynamic_table_end_step(
            self.handle, tf.cast(_NEXT_STEP if step is None else step, tf.int64), once_in_a_run=_runs_once()
        )

    def clock(self) -> tf.Tensor:
        """Returns the counters for rounding and steps, [2] int64. To continue exactly, save them with the rows."""
        return library.ops.lockstep_dynamic_table_clock(self.handle)

    def set_clock(self, clock: Any) -> tf.Operation | None:
        """Restores the counters that `clock()` returned."""
        return library.ops.lockstep_dynamic_table_set_clock(self.handle, tf.cast(clock, tf.int64))

    @property
    def creation(self) -> tf.Operation | None:
        """In a graph, the operation that creates the table without keys, regardless of its initializer."""
        return self._creation

    def begin_with(self, initializer: tf.Operation) -> None:
        """Makes an operation that creates the table with some rows its initializer."""
        self._initializer_op = initializer

    def recreate(self) -> None:
        """Creates the table again in its initial state, without keys; only in eager execution."""
        self._create()

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"TABLE": serialized.to_strings(self)}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> None:
        serialized.from_strings(self, restored_tensors["TABLE"])

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """Returns whether its initializer has run."""
        return library.ops.lockstep_dynamic_table_is_ready(self.handle, name=name)


def _runs_once() -> bool:
    """Returns whether an operation that is created here runs at most once in a run of the graph."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return not graph.building_function and graph._get_control_flow_context() is None


def _check_placement(name: str, owner: str | int, key_dtype: tf.DType) -> None:
    if owner == "remainder" and key_dtype == tf.string:
        raise ValueError(f"table '{name}': got a placement by remainder for string keys, wanted one by hash or a rank")
    if isinstance(owner, int) and owner >= context.world_size:
        raise ValueError(f"table '{name}': got a placement on rank {owner}, wanted one of {context.world_size} workers")


def checked_key_type(owner: str, key_dtype: Any) -> tf.DType:
    """Returns the type of keys of an argument `key_dtype`.

    Args:
      owner: whose argument it is, for the message.
      key_dtype: the argument.

    Raises:
      TypeError: it is not int64, int32 or string.
    """
    try:
        key_type = tf.as_dtype(key_dtype)
    except TypeError:
        key_type = None
    if key_type not in _KEY_DTYPES:
        got = repr(key_dtype) if key_type is None else key_type.name
        raise TypeError(f"{owner}: keys are {got}, wanted int64, int32 or string")
    return key_type


def wrong_keys(owner: str, got: tf.DType, wanted: tf.DType) -> str:
    """Returns the message for keys of another kind than a table or layer has: strings for integers, or the reverse."""
    kind = "string" if got == tf.string else "integer"
    return f"{owner}: keys are {got.name}, wanted {wanted.name}; for {kind} keys create it with another key_dtype"


def _checked_types(name: str, dim: Any, key_dtype: Any, dtype: Any) -> tuple[tf.DType, tf.DType]:
    """Returns the types of keys and of rows; raises TypeError or ValueError if an argument is wrong."""
    key_type, row_type = checked_key_type(f"table '{name}'", key_dtype), tf.as_dtype(dtype)
    if row_type not in _VALUE_DTYPES:
        raise TypeError(f"table '{name}': rows are {row_type.name}, wanted float32, float16 or bfloat16")
    if not isinstance(dim, int) or dim < 1:
        raise ValueError(f"table '{name}': dimension is {dim!r}, wanted a number of at least 1")
    return key_type, row_type
