"""SOK's variables with a fixed number of rows: distributed over the ranks by rows, or whole on one rank.

To TensorFlow and its optimizers such a variable is an ordinary one that has this rank's rows; so its value, checkpoints
and gradients are the rank's own, and indices are local rows. Only `sok.lookup_sparse` and `all2all_dense_embedding`
take ids of the whole table (`lookups.py`). The place of each row is the engine's (`Shard`, core/sharding/placement.h).
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from lockstep._src.compat.sok import job
from lockstep._src.engine import library
from lockstep._src.tables import sharded
from lockstep._src.tables.dynamic import tensorflow1_adapter
from lockstep._src.tables.placement.shard import Shard
from lockstep._src.tables.sharded import initial_values
from lockstep._src.tables.sharded.table import SliceOfTable, unique_name

_numbers = itertools.count()


def make(*args: Any, mode: str | None = None, **kwargs: Any) -> StaticVariable:
    """Returns a variable of the class that `mode` names; see `sparse_operation_kit.Variable`."""
    target = target_of(mode)
    if target is None:
        return DistributedVariable(*args, **kwargs)
    return LocalizedVariable(*args, target_gpu=target, **kwargs)


def target_of(mode: str | None) -> int | None:
    """Returns the rank that "localized:#" names, and None for None or "distributed".

    Raises:
      ValueError: the mode is another text, or there is no such rank. (The original raises RuntimeError, and for
        "localized" without a rank IndexError.)
    """
    if mode is None or mode == "distributed":
        return None
    kind, _, number = str(mode).partition(":")
    if kind != "localized" or not number.strip().isdecimal():
        raise ModeError(f"mode: got {mode!r}, wanted 'distributed', or 'localized:0' with the rank of the table")
    check_target(int(number))
    return int(number)


class ModeError(ValueError, RuntimeError):
    """A mode or a rank that does not exist; the original raises RuntimeError."""


def check_target(rank: int) -> None:
    """Raises ModeError if the job has no such rank."""
    if not 0 <= rank < job.num_ranks():
        raise ModeError(
            f"There are only {job.num_ranks()} GPU(s), cannot put embedding table on {rank}th(zero-indexed) GPU: a "
            "rank stands for a GPU here"
        )


class StaticVariable(resource_variable_ops.ResourceVariable):
    """A table [rows, D] of which this rank holds a part.

    Args:
      initial_value: the whole table: an array, a list or a tensor [rows, D], or [D] for one row; or a function without
        arguments that returns a tensor of the shape `shape`. Not together with `initializer`.
      shape: [rows, D], for an initializer or a function.
      initializer: takes a shape and `dtype`, as in TensorFlow and Keras. It is called for the whole table,
        and a rank draws its rows. Without a seed it gets one from the variable's name, so rows do not depend on the
        number of ranks.
      dtype: the type of the values; None for the initial value's type, and for an initializer float32.
      name: None for "sok_static_Variable_" and a number.
      first: the rank that holds the first block.
      whole: whether one block has all rows.
      **kwargs: other arguments of `tf.Variable`.

    Raises:
      ValueError: there is neither a value nor shape and initializer, or the shape does not fit a table.
      RuntimeError: before `sok.init`.
    """

    # Gradients of lookups are plain sums over the ranks. Optimizers that exchange gradients know it by this.
    sums_gradients = True

    # The ranks' slices of one row are added before an optimizer sees them, with no pass of their own.
    fuses_updates = True

    def __init__(
        self,
        initial_value: Any = None,
        shape: Any = None,
        initializer: Any = None,
        dtype: Any = None,
        name: str | None = None,
        first: int = 0,
        whole: bool = False,
        **kwargs: Any,
    ) -> None:
        name = name or f"sok_static_Variable_{next(_numbers)}"
        if (initial_value is None) == (initializer is None):
            raise ValueError(
                f"variable '{name}': wanted an initial_value, or an initializer and a shape, one of the two"
            )
        dtype = None if dtype is None else tf.as_dtype(dtype)
        if initializer is not None:
            dtype = dtype or tf.float32
            initial_value = functools.partial(initializer, _shape_of(name, None, shape), dtype=dtype)
        elif not callable(initial_value):
            initial_value = initial_value if hasattr(initial_value, "shape") else np.array(initial_value)
        rows, dim = _shape_of(name, initial_value, shape)
        self._shard = Shard(rows, job.rank(), job.num_ranks(), rows if whole else 1, first)
        super().__init__(
            initial_value=_own_rows(initial_value, (rows, dim), dtype, self._shard, unique_name(name)),
            name=name,
            dtype=dtype,
            **kwargs,
        )
        self._dim = dim
        row_bytes = dim * self.dtype.size
        library.set_table_size(self.logical_name, self._shard.local_rows, self._shard.local_rows * row_bytes)
        sharded.note(self)
        tensorflow1_adapter.register(self)
        if not tf.executing_eagerly():
            self._join_graph()

    def _join_graph(self) -> None:
        """Makes savers save it as one tensor of its whole shape, and optimizers' slots for it as well.

        A saver saves for the job in a scope, and of a graph that has a table of this class or a dynamic one. All ranks
        then save to the same files.
        """
        sharded.register(self)
        if self._shard.world_size > 1:
            offset, length = self._shard.contiguous_range
            self._set_save_slice_info(
                SliceOfTable(self.logical_name, list(self.global_shape), [offset, 0], [length, self._dim])
            )

    @property
    def shard(self) -> Shard:
        """The rows that this rank holds. Scopes of this library know a sharded table by it."""
        return self._shard

    @property
    def global_shape(self) -> tuple[int, int]:
        """The shape (rows, D) of the whole table; `shape` is the shape of this rank's part."""
        return self._shard.rows, self._dim

    @property
    def logical_shape(self) -> tf.TensorShape:
        """The shape of the whole table."""
        return tf.TensorShape(self.global_shape)

    @property
    def logical_name(self) -> str:
        """The name of the table, the same on all ranks."""
        return self._shared_name

    @property
    def global_gpu_id(self) -> int:
        """The rank of this process."""
        return self._shard.rank

    @property
    def num_gpus(self) -> int:
        """The number of ranks."""
        return self._shard.world_size


class DistributedVariable(StaticVariable):
    """A table whose row i is on rank i mod the number of ranks; see `sparse_operation_kit.DistributedVariable`."""

    __module__ = "sparse_operation_kit"

    def __init__(
        self, *args: Any, global_gpu_id: int | None = None, num_gpus: int | None = None, **kwargs: Any
    ) -> None:
        _check_place(global_gpu_id=(global_gpu_id, job.rank()), num_gpus=(num_gpus, job.num_ranks()))
        super().__init__(**_by_name(args, kwargs))

    @property
    def target_gpu(self) -> int:
        """-1: the table is on all ranks."""
        return -1

    def key_map(self, indices: Any) -> Any:
        """Returns the local rows of ids of which this rank is the owner, a tensor or an array."""
        return indices // self.num_gpus


class LocalizedVariable(StaticVariable):
    """A table that is whole on the rank `target_gpu`; see `sparse_operation_kit.LocalizedVariable`."""

    __module__ = "sparse_operation_kit"

    def __init__(
        self, *args: Any, global_gpu_id: int | None = None, target_gpu: int | None = None, **kwargs: Any
    ) -> None:
        _check_place(global_gpu_id=(global_gpu_id, job.rank()))
        if target_gpu is None:
            raise ModeError("target_gpu: got None, wanted the rank that holds the table")
        check_target(target_gpu)
        self._target_gpu = target_gpu
        super().__init__(**_by_name(args, kwargs), first=target_gpu, whole=True)

    @property
    def target_gpu(self) -> int:
        """The rank that holds the table."""
        return self._target_gpu

    def key_map(self, indices: Any) -> Any:
        """Returns the local rows of ids, which are the ids."""
        return indices


# The order of arguments of the original's classes.
_ARGUMENTS = (
    "initial_value",
    "trainable",
    "collections",
    "validate_shape",
    "caching_device",
    "name",
    "dtype",
    "variable_def",
    "import_scope",
    "constraint",
    "distribute_strategy",
    "synchronization",
    "aggregation",
    "shape",
    "initializer",
)


def _by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if len(args) > len(_ARGUMENTS):
        raise TypeError(f"Variable: got {len(args)} arguments without a name, wanted at most {len(_ARGUMENTS)}")
    given = dict(zip(_ARGUMENTS, args, strict=False))
    if twice := given.keys() & kwargs.keys():
        raise TypeError(f"Variable: got multiple values for argument {sorted(twice)[0]!r}")
    return {**given, **kwargs}


def _check_place(**values: tuple[int | None, int]) -> None:
    for name, (got, wanted) in values.items():
        if got is not None and got != wanted:
            raise ValueError(f"{name}: got {got}, wanted {wanted}, as in the job")


def _shape_of(name: str, initial_value: Any, shape: Any) -> tuple[int, int]:
    """Returns (rows, D) of a table; a value [D] is one row."""
    if initial_value is not None:
        shape = initial_values.shape_of(initial_value, shape if callable(initial_value) else None)
    dims = tf.TensorShape(shape)
    dims = [1, *dims] if dims.rank == 1 else list(dims or [])
    if len(dims) != 2 or None in dims or 0 in dims:
        raise ShapeError(
            f"variable '{name}': the shape is {tf.TensorShape(shape)}, wanted [rows, dimension], or [dimension] for "
            "one row, without zeros"
        )
    return int(dims[0]), int(dims[1])


class ShapeError(ValueError, RuntimeError):
    """A shape that does not fit a table; the original raises RuntimeError."""


def _own_rows(value: Any, shape: tuple[int, int], dtype: tf.DType | None, shard: Shard, name: str) -> Any:
    """Returns a function that returns this rank's rows of an initial value."""
    if isinstance(value, functools.partial):
        return initial_values.own_rows(value, tf.TensorShape(shape), dtype, shard, name)

    def whole() -> Any:
        given = value() if callable(value) else value
        if isinstance(given, np.ndarray):
            return given.reshape(shape)
        given = tf.convert_to_tensor(given)
        return given if given.shape == shape else tf.reshape(given, shape)

    rows = initial_values.own_rows(whole, tf.TensorShape(shape), None, shard, name)
    return rows if dtype is None else lambda: tf.cast(rows(), dtype)
