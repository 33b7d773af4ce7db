"""The variable class of a dynamic table."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.eager import tape
from tensorflow.python.framework import cpp_shape_inference_pb2, ops
from tensorflow.python.ops import resource_variable_ops

from lockstep._src import library
from lockstep._src.context import context
from lockstep._src.embedding import initial, modes, options, serialized, steps
from lockstep._src.sharding import steps as sharding_steps

_KEY_DTYPES = (tf.int64, tf.int32, tf.string)
_VALUE_DTYPES = (tf.float32, tf.float16, tf.bfloat16)
# The dynamic tables of a graph.
TABLES = "lockstep/dynamic_tables"


class Export(NamedTuple):
    """All admitted keys of a table on this worker, ascending.

    Attributes:
      keys: [N] int64 or string.
      values: [N, D] of the table's type.
      versions: [N] int64, the step in which each was last seen; -1 where the table doesn't record it.
      freqs: [N] int64, how often each was seen; -1 where the table doesn't record it.
    """

    keys: tf.Tensor
    values: tf.Tensor
    versions: tf.Tensor
    freqs: tf.Tensor


class _Asking(threading.local):
    one_row = False


_asking = _Asking()


@contextlib.contextmanager
def shapes_of_one_row() -> Iterator[None]:
    """Inside, a table says that it is of shape [1, D]: for optimizers, which ask for the shape of a slot."""
    before, _asking.one_row = _asking.one_row, True
    try:
        yield
    finally:
        _asking.one_row = before


def is_asked_for_one_row() -> bool:
    """Whether this is inside of `shapes_of_one_row`."""
    return _asking.one_row


def dynamic_tables(graph: tf.Graph | None = None) -> list[DynamicVariable]:
    """The dynamic tables of a graph (the default one), in the order in which they were made."""
    return (graph or tf.compat.v1.get_default_graph()).get_collection(TABLES)


def is_dynamic(variable: Any) -> bool:
    """Whether a variable is a dynamic table."""
    return isinstance(variable, DynamicVariable)


class DynamicVariable(resource_variable_ops.BaseResourceVariable):
    """A table of embeddings that grows with its keys: any int64, int32 or string has a row of D values.

    `tf.nn.embedding_lookup`, `embedding_lookup_sparse`, `safe_embedding_lookup_sparse` and `tf.gather` take it as a
    table of unknown length; its gradient is `tf.IndexedSlices` with numbers of rows, -1 for keys that are not admitted.
    What has a meaning for a matrix alone (its value, assignments, slices) raises NotImplementedError. `modes.py` says
    which lookups take new keys in.

    In a job of several workers each key has an owner, by a hash of the key, and lookups fetch rows from their owners:
    all workers ask, or none does. Statistics are of this worker's keys.

    Args:
      name: of the table; initial values depend on it.
      dim: D.
      key_dtype: of the keys: int64, int32 or string.
      dtype: of the rows: float32, float16 or bfloat16. They are computed with in float32, and what training makes of
        16-bit rows is rounded stochastically.
      initializer: see `initial.initial_of`.
      trainable: whether it joins `TRAINABLE_VARIABLES`, and tapes watch it.
      collections: of the graph; `GLOBAL_VARIABLES` where None.
      option: see `EmbeddingVariableOption`.

    Raises:
      TypeError, ValueError: an argument or an option that is none.
    """

    is_dynamic = True

    def __init__(
        self,
        name: str,
        dim: int,
        key_dtype: Any = tf.int64,
        dtype: Any = tf.float32,
        initializer: Any = None,
        trainable: bool = True,
        collections: Any = None,
        option: options.EmbeddingVariableOption | None = None,
    ) -> None:
        option = option or options.EmbeddingVariableOption()
        self._key_dtype, row_type = tf.as_dtype(key_dtype), tf.as_dtype(dtype)
        if self._key_dtype not in _KEY_DTYPES:
            raise TypeError(f"table '{name}': keys are {self._key_dtype.name}, wanted int64, int32 or string")
        if row_type not in _VALUE_DTYPES:
            raise TypeError(f"table '{name}': rows are {row_type.name}, wanted float32, float16 or bfloat16")
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"table '{name}': dimension is {dim!r}, wanted a number of at least 1")
        self._dim, self._option = dim, option
        self._world_size = context.world_size
        self._last_lookups: weakref.WeakKeyDictionary[tf.Graph, tf.Operation] = weakref.WeakKeyDictionary()
        with ops.init_scope():
            in_graph = not tf.executing_eagerly()
            with ops.name_scope(name, skip_on_eager=False) as scope_name:
                handle_name = scope_name.removesuffix("/")
                if in_graph and all(table.logical_name != name for table in dynamic_tables()):
                    # Whatever else has a name like it: initial values and checkpoints go by the table's.
                    handle_name = name
                self._attributes = options.attributes(option, self._world_size)
                start = initial.initial_of(
                    initializer if initializer is not None else option.init_option.initializer,
                    dim,
                    handle_name,
                    option.init_option.default_value_dim,
                )
                shared_name = handle_name if in_graph else f"{handle_name}_{ops.uid()}"
                with ops.device("/device:CPU:0"):
                    handle = library.ops.lockstep_dynamic_table(
                        dim=dim, shared_name=shared_name, name=scope_name if in_graph else None
                    )
                    _set_handle_data(handle, dim)
                    create = functools.partial(
                        library.ops.lockstep_dynamic_table_create,
                        handle,
                        start.rows,
                        table_name=handle_name,
                        string_keys=self._key_dtype == tf.string,
                        dim=dim,
                        row_type=row_type,
                        **start.attributes,
                        **self._attributes,
                    )
                    initializer_op = create(name="Initializer" if in_graph else None)
                    ready = library.ops.lockstep_dynamic_table_is_ready(handle, name="IsReady") if in_graph else None
            super().__init__(
                trainable=trainable,
                shape=tf.TensorShape([None, dim]),
                dtype=row_type,
                handle=handle,
                synchronization=tf.VariableSynchronization.NONE,
                aggregation=tf.VariableAggregation.NONE,
                unique_id=shared_name,
                handle_name=handle_name,
                initializer_op=initializer_op if in_graph else None,
                is_initialized_op=ready,
                in_graph_mode=in_graph,
            )
            if in_graph:
                self._join_graph(collections)
            else:
                self._create = create
                weakref.finalize(self, _destroy, handle)

    def _join_graph(self, collections: Any) -> None:
        keys = tf.compat.v1.GraphKeys
        names = list(collections or [keys.GLOBAL_VARIABLES])
        if self.trainable and keys.TRAINABLE_VARIABLES not in names:
            names.append(keys.TRAINABLE_VARIABLES)
        ops.add_to_collections([*names, TABLES], self)

    @property
    def dim(self) -> int:
        """D."""
        return self._dim

    @property
    def key_dtype(self) -> tf.DType:
        """Of the keys."""
        return self._key_dtype

    @property
    def option(self) -> options.EmbeddingVariableOption:
        """The options that it was made with."""
        return self._option

    @property
    def logical_name(self) -> str:
        """Name of the table, the same on all workers."""
        return self._handle_name.split(":")[0]

    @property
    def shape(self) -> tf.TensorShape:
        """[?, D]."""
        return tf.TensorShape([1 if _asking.one_row else None, self._dim])

    def get_shape(self) -> tf.TensorShape:
        """[?, D]."""
        return self.shape

    @property
    def device(self) -> str:
        """Where the table is, in a spelling of its own ("/CPU:0" for "/device:CPU:0").

        `embedding_lookup_sparse` reads the whole variable where its device equals that of the ids. It must not.
        """
        return "/CPU:0"

    @property
    def has_step(self) -> bool:
        """Whether anything is to be done at the end of a step: keys go, or steps are recorded."""
        a = self._attributes
        evicts = any(a.get(n) for n in ("steps_to_live", "seconds_to_live", "l2_threshold", "max_keys", "max_bytes"))
        forgets = self._key_dtype == tf.string and bool(a.get("bloom_keys"))
        return evicts or forgets or a["record_version"]

    @property
    def _counts(self) -> bool:
        """Whether it matters how often a key is seen in a lookup."""
        a = self._attributes
        return a["record_frequency"] or a.get("min_frequency", 0) > 1 or a.get("order") == "lfu"

    def __repr__(self) -> str:
        return (
            f"<DynamicVariable '{self.name}' of dimension {self._dim}, keys {self._key_dtype.name}, rows "
            f"{self.dtype.name}>"
        )

    # Lookups.

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Rows by key.

        Args:
          indices: keys of any shape, of the table's type; int32 and int64 are both taken for numbers.
          name: of the operation.

        Returns:
          [indices..., D].

        Raises:
          TypeError: keys of another type.
        """
        with ops.name_scope("Gather" if name is None else name):
            keys = tf.convert_to_tensor(indices)
            if keys.dtype not in _KEY_DTYPES or (keys.dtype == tf.string) != (self._key_dtype == tf.string):
                raise TypeError(
                    f"table '{self.logical_name}': keys are {keys.dtype.name}, wanted {self._key_dtype.name}"
                )
            # Nobody ends steps of a table that is not trained: it would grow for ever.
            training = modes.is_training() and self.trainable
            if training:
                tape.variable_accessed(self)
            rows = self._look_up(keys, training) if self._world_size == 1 else self._exchange(keys, training)
            return rows if self.dtype == tf.float32 else tf.cast(rows, self.dtype)

    def _look_up(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        if not training:
            return steps.lookup(self.handle, keys)
        before = steps.times_seen(keys) if self._counts else None
        times = None if before is None else tf.math.bincount(before[1], minlength=tf.size(keys), dtype=tf.int64)
        return self._resolve(keys, times)

    def _exchange(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """A lookup in a job: each distinct key goes to its owner, and its row comes back."""
        if not training:
            served, _, route = self._route(keys, counts=False)
            return sharding_steps.combine(steps.lookup(self.handle, served), route)
        before = steps.times_seen(keys) if self._counts else None
        served, times, route = self._route(keys if before is None else before[0], self._counts)
        if before is not None:
            # All places of a distinct key have the same place among what travels.
            inverse = tf.math.unsorted_segment_max(route.inverse, before[1], tf.size(keys))
            route = route._replace(inverse=inverse)
        return sharding_steps.combine(self._resolve(served, times), route)

    def _route(self, keys: tf.Tensor, counts: bool) -> tuple[tf.Tensor, tf.Tensor | None, sharding_steps.Route]:
        """The keys that this worker serves, [M], where it `counts` how often each was asked for, and the route."""
        if self._key_dtype == tf.string:
            route, times = sharding_steps.route_strings(keys, self.logical_name)
            return route.local_rows, times if counts else None, route
        route = sharding_steps.route(keys, steps.COUNTED_KEYS if counts else steps.ANY_KEY, self.logical_name)
        if not counts:
            return route.local_rows, None, route
        return *tf.unstack(route.local_rows, num=2, axis=1), route

    def _resolve(self, keys: tf.Tensor, times: tf.Tensor | None) -> tf.Tensor:
        if self._attributes.get("min_frequency", 0) <= 1:
            return steps.resolve(self.handle, keys, times)[0]
        with self._after_the_lookup_before():
            rows, numbers = steps.resolve(self.handle, keys, times)
        self._note_lookup(rows)
        # No gradient of keys that are not admitted: it would count in norms.
        admitted = tf.reshape(numbers >= 0, tf.concat([tf.shape(keys), [1]], 0))
        return tf.where(admitted, rows, tf.stop_gradient(rows))

    def _after_the_lookup_before(self) -> Any:
        """Lookups that decide what is taken in run in the order in which they were built: it decides with them."""
        before = None if tf.executing_eagerly() else self._last_lookups.get(tf.compat.v1.get_default_graph())
        return contextlib.nullcontext() if before is None else tf.control_dependencies([before])

    def _note_lookup(self, rows: tf.Tensor) -> None:
        graph = None if tf.executing_eagerly() else rows.graph
        # In the branches and loops of TensorFlow 1 an edge from one to another would kill what waits for it.
        if graph is not None and graph._get_control_flow_context() is None:
            self._last_lookups[graph] = rows.op

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Rows by key, where `indices` are [..., 1]; else NotImplementedError."""
        indices = tf.convert_to_tensor(indices)
        if tf.compat.dimension_value(indices.shape[-1]) != 1:
            self._refuse("gather_nd of elements", "look rows up and gather from them")
        return self.sparse_read(indices[..., 0], name)

    # What it holds, on this worker.

    def total_count(self) -> tf.Tensor:
        """How many keys are admitted: int64 scalar. Of this worker's keys, as all of these."""
        return library.ops.lockstep_dynamic_table_count(self.handle)[0]

    def candidate_count(self) -> tf.Tensor:
        """How many keys are counted until they are admitted: int64 scalar."""
        return library.ops.lockstep_dynamic_table_count(self.handle)[1]

    def memory_bytes(self) -> tf.Tensor:
        """Memory of rows, slots, counts and index: int64 scalar."""
        return library.ops.lockstep_dynamic_table_count(self.handle)[2]

    def get_dynamic_shape(self) -> tf.Tensor:
        """[total_count, D], int64."""
        return tf.stack([self.total_count(), self._dim])

    def export(self) -> Export:
        """All admitted keys with their rows."""
        keys, values, freqs, versions, _ = library.ops.lockstep_dynamic_table_export(
            self.handle, Tkeys=tf.string if self._key_dtype == tf.string else tf.int64, num_slots=0, slots=[]
        )
        return Export(keys, tf.cast(values, self.dtype), versions, freqs)

    def export_slots(self, *names: str) -> list[tf.Tensor]:
        """Slots of all admitted keys, in the order of `export`: each [N, D] float32.

        Running it raises InvalidArgumentError for a slot that the table doesn't have.
        """
        return library.ops.lockstep_dynamic_table_export(
            self.handle,
            Tkeys=tf.string if self._key_dtype == tf.string else tf.int64,
            num_slots=len(names),
            slots=list(names),
        ).slot_values

    def get_frequency(self, ids: Any) -> tf.Tensor:
        """How often keys were seen in training, of `ids`' shape, int64; 0 for those that are not there.

        Running it raises FailedPreconditionError where it is not recorded (`record_frequency`).
        """
        return library.ops.lockstep_dynamic_table_counts(self.handle, tf.convert_to_tensor(ids), of="frequency")

    def get_version(self, ids: Any) -> tf.Tensor:
        """In what step keys were last seen in training, of `ids`' shape, int64; 0 for those that are not there.

        Running it raises FailedPreconditionError where it is not recorded (`record_version`).
        """
        return library.ops.lockstep_dynamic_table_counts(self.handle, tf.convert_to_tensor(ids), of="version")

    def insert(self, keys: Any, values: Any, freqs: Any = (), versions: Any = ()) -> tf.Operation | None:
        """Puts rows in as those of admitted keys, over those that are there; their slots begin anew.

        Args:
          keys: [N], of this worker's keys: in a job those that other workers own would never be looked up here.
          values: [N, D].
          freqs: [N] int64, or none.
          versions: [N] int64, or none: the present step.
        """
        return library.ops.lockstep_dynamic_table_insert(
            self.handle,
            tf.convert_to_tensor(keys, None if tf.is_tensor(keys) else self._key_dtype),
            tf.cast(values, tf.float32),
            tf.cast(freqs, tf.int64),
            tf.cast(versions, tf.int64),
        )

    def remove(self, keys: Any) -> tf.Tensor:
        """Lets keys go; how many were there, int64 scalar."""
        keys = tf.convert_to_tensor(keys, None if tf.is_tensor(keys) else self._key_dtype)
        return library.ops.lockstep_dynamic_table_remove(self.handle, keys)

    def end_step(self, step: Any = -1) -> tf.Operation | None:
        """Evicts by the options, and sets the step that lookups count in. Optimizers do it after their updates.

        Of several in one run the first counts.

        Args:
          step: int64; negative for one more than before.
        """
        return library.ops.lockstep_dynamic_table_end_step(self.handle, tf.cast(step, tf.int64))

    def create_anew(self) -> None:
        """Makes it as it began, without keys; in eager execution."""
        self._create()

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"TABLE": serialized.to_strings(self)}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> None:
        serialized.from_strings(self, restored_tensors["TABLE"])

    # What a table without a length cannot do.

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        """Whether its initializer has run."""
        return library.ops.lockstep_dynamic_table_is_ready(self.handle, name=name)

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise NotImplementedError(f"table '{self.logical_name}' is dynamic: no {what}; {instead}")

    def value(self) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("value as a matrix", "look keys up, export(), or leave it out of a list of variables")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse("copy.deepcopy", "make another table and insert what this one exports")


def _refusing(method: str, instead: str) -> Any:
    def refuse(self: DynamicVariable, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(method, instead)

    refuse.__doc__ = "Raises NotImplementedError."
    return refuse


for _method in ("read_value", "read_value_no_copy", "numpy", "_dense_var_to_tensor", "_read_variable_op"):
    setattr(
        DynamicVariable,
        _method,
        _refusing("value as a matrix", "look keys up, export(), or leave it out of a list of variables"),
    )
for _method in ("assign", "assign_add", "assign_sub", "load", "_strided_slice_assign", "batch_scatter_update"):
    setattr(DynamicVariable, _method, _refusing(_method, "insert() takes keys and rows"))
for _method in (
    "add",
    "sub",
    "update",
    "max",
    "min",
    "mul",
    "div",
    "nd_sub",
    "nd_add",
    "nd_update",
    "nd_max",
    "nd_min",
):
    setattr(DynamicVariable, f"scatter_{_method}", _refusing(f"scatter_{_method}", "insert() takes keys and rows"))
DynamicVariable._export_to_saved_model_graph = _refusing("SavedModel", "hb.train.export writes one of its checkpoint")
DynamicVariable.initial_value = property(_refusing("initial_value", "every key has its own"))


def _set_handle_data(handle: Any, dim: int) -> None:
    """Tells TensorFlow what a handle reads, as its gradients want to know; in a graph the operation's shapes say it."""
    if not tf.executing_eagerly():
        return
    data = cpp_shape_inference_pb2.CppShapeInferenceResult.HandleData()
    data.is_set = True
    data.shape_and_type.append(
        cpp_shape_inference_pb2.CppShapeInferenceResult.HandleShapeAndType(
            shape=tf.TensorShape([None, dim]).as_proto(), dtype=types_pb2.DT_FLOAT
        )
    )
    handle._handle_data = data


def _destroy(handle: Any) -> None:
    with contextlib.suppress(Exception), tf.init_scope():
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
