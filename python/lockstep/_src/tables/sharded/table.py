"""The variable class of a sharded table."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.engine.host_memory import on_host
from lockstep._src.engine.thread_value import ThreadValue
from lockstep._src.tables.placement.shard import Shard
from lockstep._src.tables.sharded import initial_values, lookup_steps, scatters, shard
from lockstep._src.tables.sharded.row_reads import read_rows


class EitherShape(tf.TensorShape):
    """The shape of the shard, which also equals the shape of the whole table.

    Feature columns compare the shape of a variable that they reuse with the one that they would create.
    """

    def __init__(self, shape: tf.TensorShape, logical: tf.TensorShape) -> None:
        super().__init__(shape)
        self._logical = logical

    @property
    def logical(self) -> tf.TensorShape:
        """The shape of the whole table."""
        return self._logical

    def __eq__(self, other: Any) -> bool:
        return tf.TensorShape.__eq__(self, other) is True or self._logical == other

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def is_compatible_with(self, other: Any) -> bool:
        return super().is_compatible_with(other) or self._logical.is_compatible_with(other)

    __hash__ = tf.TensorShape.__hash__

    def __reduce__(self) -> Any:
        return tf.TensorShape, (self.as_list(),)


class SliceOfTable(tf.compat.v1.Variable.SaveSliceInfo):
    """The slice of the table that a worker would hold if rows were placed by ranges; they are placed by remainders."""

    @property
    def spec(self) -> str:
        """Raises RuntimeError: TensorFlow's own savers would write the shard's rows into a wrong range."""
        raise RuntimeError(
            f"table '{self.full_name}' is sharded; create the tf.train.Saver that saves it inside the scope"
        )


_reads_shards = ThreadValue(False)


def reading_shards() -> contextlib.AbstractContextManager[None]:
    """Makes reads of a table as a tensor return the shard, for optimizers, whose gradients and slots are shards."""
    return _reads_shards.holding(True)


class RowShardedTable(resource_variable_ops.BaseResourceVariable):
    """A table [rows, D...] of which this worker holds a part: rows `rank`, `rank + R`, `rank + 2R`, ... of R workers.

    With other placements (`Shard`) it holds other rows, all or none.

    To optimizers, initializers and savers it is an ordinary variable with the shape of the shard, and with ordinary
    slots and gradients. Reads of its value return the whole table, and all workers must make them together:

    | use | effect |
    | --- | --- |
    | `tf.nn.embedding_lookup*`, `tf.gather` on axis 0, `tf.gather_nd` | rows are fetched from their owners |
    | any other use as a tensor: matmul, `v[i]`, `read_value()`, `session.run(v)` | the whole table is gathered |
    | `assign*` of a whole table or of a shard | this worker's rows are assigned |
    | `scatter_add`, `scatter_sub`, `scatter_update` | indices are rows of the shard, as in gradients and optimizers |
    | other scatters, `v[i].assign`, `tf.train.Checkpoint`, `copy.deepcopy`, moving averages | NotImplementedError |

    Gradients of both kinds of reads are the mean over the workers. They are `tf.IndexedSlices` with rows of the shard,
    or a dense tensor of the shard's shape.

    The base is `BaseResourceVariable` and not `ResourceVariable`, because TensorFlow's eager operations read the handle
    of the latter without calling the object.

    Args:
      initial_value: the value of the whole table, or a function without arguments that returns it; see
        `initial_values`.
      trainable: as for `tf.Variable`; None means True.
      collections: the graph's collections that it joins; None: `GLOBAL_VARIABLES`. Trainable tables also join
        `TRAINABLE_VARIABLES`.
      name: as for `tf.Variable`.
      dtype: the type of the table; None for the initial value's type.
      constraint: applied to the whole table after an update with a dense gradient.
      synchronization: as for `tf.Variable`.
      aggregation: as for `tf.Variable`.
      shape: the shape of the whole table; None: the initial value's.
      block: see `Shard`.
      first: see `Shard`.
      **unused: other arguments of `tf.Variable`.

    Raises:
      ValueError: the shape is not known, or the initial value has another shape.
    """

    # Whether lookups with a combiner may be made of this library's operations.
    fuses_lookups = True
    # Whether gradients of lookups are plain sums over the workers outside of scopes, regardless of the options.
    sums_gradients = False

    def __init__(
        self,
        initial_value: Any,
        trainable: bool | None = None,
        collections: Any = None,
        name: str | None = None,
        dtype: Any = None,
        constraint: Any = None,
        synchronization: tf.VariableSynchronization = tf.VariableSynchronization.AUTO,
        aggregation: tf.VariableAggregation = tf.VariableAggregation.NONE,
        shape: Any = None,
        block: int = 1,
        first: int = 0,
        **unused: Any,
    ) -> None:
        del unused
        name = name or "Variable"
        self._logical_shape = initial_values.shape_of(initial_value, shape)
        if not self._logical_shape.rank or not self._logical_shape.is_fully_defined():
            raise ValueError(f"table '{name}': got the shape {self._logical_shape}, wanted a known shape with rows")
        self._shard = Shard(self._logical_shape.as_list()[0], context.rank, context.world_size, block, first)
        # A stock variable makes the handle, the initializer and the read operation; it joins no collection.
        with on_host():
            local = resource_variable_ops.ResourceVariable(
                initial_value=initial_values.own_rows(
                    initial_value, self._logical_shape, dtype, self._shard, unique_name(name)
                ),
                trainable=False,
                collections=[],
                name=name,
                dtype=dtype,
            )
        super().__init__(
            trainable=trainable,
            shape=local.shape,
            dtype=local.dtype,
            handle=local.handle,
            constraint=constraint,
            synchronization=synchronization,
            aggregation=aggregation,
            distribute_strategy=local._distribute_strategy,
            unique_id=local._unique_id,
            handle_name=local.name.split(":")[0],
            graph_element=local._graph_element,
            initial_value=local._initial_value,
            initializer_op=local._initializer_op,
            is_initialized_op=local._is_initialized_op,
            in_graph_mode=local._in_graph_mode,
        )
        # The handle has only a weak reference to the stock variable.
        self._local = local
        row_bytes = self._logical_shape[1:].num_elements() * local.dtype.size
        library.set_table_size(self.logical_name, self._shard.local_rows, self._shard.local_rows * row_bytes)
        if self._in_graph_mode:
            with ops.init_scope():
                self._join_graph(collections)

    def _join_graph(self, collections: Any) -> None:
        names = list(collections or [tf.compat.v1.GraphKeys.GLOBAL_VARIABLES])
        if self.trainable and tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES not in names:
            names.append(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        ops.add_to_collections(names, self)
        shard.register(self)
        if self._shard.world_size == 1:
            return
        with ops.name_scope(self.logical_name + "/Whole/"):
            # The tensor that session.run(table) fetches.
            self._graph_element: tf.Tensor = lookup_steps.gather_table(self._graph_element, self._shard)
        # Slots copy this slice information, which identifies their table (shard.py).
        offset, length = self._shard.contiguous_range
        dims = self._logical_shape.as_list()[1:]
        self._set_save_slice_info(
            SliceOfTable(self.logical_name, [self._shard.rows, *dims], [offset, *([0] * len(dims))], [length, *dims])
        )

    @property
    def shard(self) -> Shard:
        """The rows that this worker holds."""
        return self._shard

    @property
    def logical_shape(self) -> tf.TensorShape:
        """The shape of the whole table; `shape` is the shard's."""
        return self._logical_shape

    @property
    def logical_name(self) -> str:
        """The name of the table, the same on all workers and in checkpoints."""
        return self._shared_name

    @property
    def device(self) -> str:
        """The device of the shard, in another spelling than TensorFlow's ("/CPU:0" for "/device:CPU:0").

        `embedding_lookup_sparse` reads the whole variable if its device equals the ids' device. A table must avoid
        this.
        """
        return self.handle.device.replace("/device:", "/") or "/CPU:0"

    def get_shape(self) -> tf.TensorShape:
        """Returns the shape of the shard, which also equals the shape of the whole table."""
        return EitherShape(self._shape, self._logical_shape)

    def __repr__(self) -> str:
        s = self._shard
        return (
            f"<RowShardedTable '{self.name}' shape={self._logical_shape} dtype={self.dtype.name}, "
            f"{s.local_rows} rows on rank {s.rank} of {s.world_size}>"
        )

    @property
    def initial_value(self) -> NoReturn:
        """Raises NotImplementedError."""
        self._refuse("initial_value, nor tf.train.ExponentialMovingAverage", "a moving average would be of the shard")

    # Reads.

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Returns rows of the table by id.

        Args:
          indices: int32 or int64 of any shape, each in [0, rows).
          name: the name of the operation.

        Returns:
          [indices..., D...]. If an id is out of range on one worker, running it raises InvalidArgumentError on all.
        """
        with ops.name_scope("Gather" if name is None else name), on_host():
            ids = tf.convert_to_tensor(indices)
            if self._shard.world_size == 1:
                return read_rows(self, lookup_steps.check_ids(ids, self._shard.rows, self.logical_name))
            route = lookup_steps.route(ids, self._shard, self.logical_name)
            return lookup_steps.combine(read_rows(self, route.local_rows), route, self.sums_gradients)

    @property
    def has_route(self) -> bool:
        """Whether lookups exchange ids with other workers, so that errors before it have to reach all of them."""
        return self._shard.world_size > 1

    def distinct_rows(self, ids: tf.Tensor, problem: tf.Tensor | None = None) -> lookup_steps.DistinctRows:
        """Returns the row of each distinct id, for ids as in `sparse_read`; `problem`: see `lookup_steps.route`."""
        with on_host():
            return lookup_steps.distinct_rows(self, ids, self._shard, self.logical_name, self.sums_gradients, problem)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Returns rows or elements of the table, like `tf.gather_nd`: the first coordinate is the id.

        Args:
          indices: int32 or int64 [..., K].
          name: the name of the operation.
        """
        with ops.name_scope("GatherNd" if name is None else name):
            indices = tf.convert_to_tensor(indices)
            coordinates = tf.compat.dimension_value(indices.shape[-1])
            if coordinates is None or coordinates == 0:
                return tf.gather_nd(self.read_value(), indices)
            rows = self.sparse_read(indices[..., 0])
            if coordinates == 1:
                return rows
            # The other coordinates pick from each id's row.
            flat = tf.reshape(indices, [-1, coordinates])[:, 1:]
            width = self._logical_shape[1:]
            picked = tf.gather_nd(tf.reshape(rows, [-1, *width.as_list()]), flat, batch_dims=1)
            shape = tf.concat([tf.shape(indices)[:-1], tf.constant(width[coordinates - 1 :].as_list(), tf.int32)], 0)
            picked = tf.reshape(picked, shape)
            picked.set_shape(indices.shape[:-1].concatenate(width[coordinates - 1 :]))
            return picked

    def local_value(self) -> tf.Tensor:
        """Returns the shard, [L, D...], without any exchange."""
        return self._read_variable_op()

    def value(self) -> tf.Tensor:
        """Returns the whole table, in the order of ids. All workers must call it."""
        local = self.local_value()
        if self._shard.world_size == 1 or _reads_shards.value:
            return local
        return lookup_steps.gather_table(local, self._shard)

    def read_value(self) -> tf.Tensor:
        """Returns the whole table, in the order of ids. All workers must call it."""
        with ops.name_scope("Read"):
            return tf.identity(self.value())

    def read_value_no_copy(self) -> tf.Tensor:
        """Returns the whole table, in the order of ids. All workers must call it."""
        return self.read_value()

    # Writes.

    def assign(self, value: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Assigns this worker's rows.

        Args:
          value: the whole table, or this worker's shard.
          use_locking: not used.
          name: the name of the operation.
          read_value: not used.

        Returns:
          The operation; the table under eager execution.
        """
        return super().assign(self._own_rows(value), use_locking, name, read_value=False) or self

    def assign_add(self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Adds to this worker's rows; see `assign`."""
        return super().assign_add(self._own_rows(delta), use_locking, name, read_value=False) or self

    def assign_sub(self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Subtracts from this worker's rows; see `assign`."""
        return super().assign_sub(self._own_rows(delta), use_locking, name, read_value=False) or self

    def load(self, value: Any, session: Any = None) -> None:
        """Loads this worker's rows from an array of the whole table or of the shard."""
        super().load(self._own_rows(value) if tf.executing_eagerly() else self._pick(value, value.shape), session)

    def _own_rows(self, value: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(value, self.dtype)
        return self._pick(value, value.shape)

    def _pick(self, value: Any, shape: Any) -> Any:
        shape = tf.TensorShape(shape)
        if shape.is_fully_defined():
            if shape == self._shape:
                return value
            if shape == self._logical_shape:
                return self._shard.pick(value)
        raise ValueError(
            f"table '{self.logical_name}': got a value of shape {shape}, wanted {self._logical_shape}, the whole "
            f"table, or {self._shape}, rank {self._shard.rank}'s rows"
        )

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise NotImplementedError(f"table '{self.logical_name}' is sharded and does not support {what}; {instead}")

    def _strided_slice_assign(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("assignment to a slice", "assign the whole table, or scatter rows of the shard")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse("copy.deepcopy", "make another table in the same scope and assign this one's value")

    def _serialize_to_tensors(self) -> NoReturn:
        self._refuse(
            "tf.train.Checkpoint", "save a Keras model with save_weights, a graph with tf.compat.v1.train.Saver"
        )

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(
            "tf.saved_model.save",
            "lockstep.keras.export writes a SavedModel of a Keras model, hb.train.export one of a checkpoint",
        )


def _checked_scatter(method: str) -> Any:
    scatter = getattr(resource_variable_ops.BaseResourceVariable, method)

    @functools.wraps(scatter)
    def wrapped(self: RowShardedTable, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            scatters.check_scatter(self, sparse_delta.indices, method)
        return scatter(self, sparse_delta, *args, **kwargs)

    return wrapped


for _method in ("scatter_add", "scatter_sub", "scatter_update"):
    setattr(RowShardedTable, _method, _checked_scatter(_method))


def _refusing(method: str) -> Any:
    def refuse(self: RowShardedTable, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(method, "scatter_add, scatter_sub and scatter_update take rows of the shard")

    refuse.__doc__ = "Raises NotImplementedError."
    return refuse


for _method in ("max", "min", "mul", "div", "nd_sub", "nd_add", "nd_update", "nd_max", "nd_min"):
    setattr(RowShardedTable, f"scatter_{_method}", _refusing(f"scatter_{_method}"))
RowShardedTable.batch_scatter_update = _refusing("batch_scatter_update")


def unique_name(name: str) -> str:
    """Returns the name that a variable which is created here with this `name` will have."""
    with ops.init_scope():
        if tf.executing_eagerly():
            return "/".join(filter(None, [ops.get_name_scope(), name]))
        return ops.get_default_graph().unique_name(name, mark_as_used=False)
