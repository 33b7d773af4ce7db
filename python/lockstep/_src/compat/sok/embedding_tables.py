"""The tables of the layers of SOK 1.x, each an `EmbeddingVariable`. The row of key k is on rank k mod N.

The argument `use_hashtable` chooses the class.

| `use_hashtable` | keys | class |
| --- | --- | --- |
| True | any integers, at most V on each rank | `HashedTable`, a dynamic table |
| False | 0 to V N - 1 | `IndexedTable`, a variable with V rows on each rank |

Letters: V the capacity of a rank (`max_vocabulary_size_per_gpu`), N ranks, D the dimension of a row.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok import checks, initializers, job, version_1
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import DistributedVariable
from lockstep._src.engine import library
from lockstep._src.tables import dynamic
from lockstep._src.tables.dynamic import lookups

_KEY_TYPES = (tf.int64, tf.uint32)
_NAME = "EmbeddingVariable"


class EmbeddingVariable:
    """A table of a layer; see `sparse_operation_kit.core.EmbeddingVariable`."""

    __module__ = "sparse_operation_kit.core"

    m_var_name: str
    _capacity: int
    _keys_are: tf.DType
    _layer: Any = None

    if TYPE_CHECKING:  # the classes of variables that come behind this one have these

        @property
        def dim(self) -> int: ...

        @property
        def handle(self) -> tf.Tensor: ...

    @classmethod
    def CreateInstances(  # noqa: N802
        cls,
        shape: list[int],
        trainable: bool = True,
        use_hashtable: bool = True,
        name: str = _NAME,
        dtype: Any = None,
        key_dtype: Any = None,
        initializer: Any = None,
    ) -> EmbeddingVariable:
        """Makes a table. All ranks make it together.

        Args:
          shape: [V, D], a list: the capacity of a rank and the dimension of a row.
          trainable: as for variables.
          use_hashtable: whether any integers are keys.
          name: the first part of its name; a second table of this name gets a number behind it.
          dtype: float32 or None.
          key_dtype: the type of keys, int64 or uint32; None for int64.
          initializer: see `initializers.of_table`.

        Raises:
          ValueError: an argument has a wrong value.
          TypeError: an argument has a wrong type.
        """
        is_shape = isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, (int, np.integer)) for n in shape)
        if not is_shape or min(shape) < 1:
            raise ValueError(
                f"shape_per_gpu must be a list which represents: [vocabulary_size_per_gpu, embedding_vector_size]: got "
                f"{shape!r}"
            )
        if dtype is not None and tf.as_dtype(dtype) != tf.float32:
            raise TypeError(f"EmbeddingVariable: dtype is {tf.as_dtype(dtype).name}, wanted float32")
        key_dtype = tf.int64 if key_dtype is None else tf.as_dtype(key_dtype)
        if key_dtype not in _KEY_TYPES:
            raise TypeError(f"EmbeddingVariable: key_dtype is {key_dtype.name}, wanted int64 or uint32")
        job.check_started()
        own_name = _unique_name(name)
        start = initializers.of_table(initializer, own_name, version_1.seed())
        kind = HashedTable if use_hashtable else IndexedTable
        with tf.compat.v1.name_scope(None):  # the name has the scope already
            return kind(own_name, int(shape[0]), int(shape[1]), key_dtype, start, trainable)

    @property
    def values(self) -> tuple[EmbeddingVariable]:
        """The tables of this process; a program with a strategy reads them."""
        return (self,)

    @property
    def emb_handle(self) -> tf.Tensor:
        """The resource of the table, also named `m_handle` and `tf_handle`."""
        return self.handle

    m_handle = tf_handle = emb_handle

    @property
    def capacity(self) -> int:
        """The largest number V of keys on each rank."""
        return self._capacity

    @property
    def keys_are(self) -> tf.DType:
        """The type of keys, int64 or uint32."""
        return self._keys_are

    @property
    def embedding_layer(self) -> LayerHandle:
        """The part of a layer that lookups need.

        Raises:
          ValueError: the table belongs to no layer.
        """
        if self._layer is None:
            raise ValueError(f"EmbeddingLayer for {self.m_var_name} is not set.")
        return self._layer

    def set_embedding_layer(self, layer: LayerHandle) -> None:
        """Sets `embedding_layer`.

        Raises:
          ValueError: it was set before.
        """
        if self._layer is not None:
            raise ValueError(f"EmbeddingLayer for {self.m_var_name} is already set.")
        self._layer = layer

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise NotImplementedError(f"table '{self.m_var_name}' cannot be copied; make another layer")

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError(f"table '{self.m_var_name}' cannot be pickled; use sok.Saver")

    def _describe(self, name: str, capacity: int, key_dtype: tf.DType) -> None:
        self.m_var_name, self._capacity, self._keys_are = name, capacity, key_dtype


@dataclasses.dataclass(frozen=True)
class LayerHandle:
    """The part of a layer that lookups in its table need.

    Attributes:
      handle: the resource of the table.
      initializer: in a graph, an operation to run before lookups; it does nothing.
      compute_dtype: the type of the layer's output.
      combiner: how rows are combined, "sum" or "mean"; None: they are not.
    """

    handle: tf.Tensor
    initializer: tf.Operation | None
    compute_dtype: tf.DType
    combiner: str | None = None


class HashedTable(EmbeddingVariable, DynamicVariable):
    """A table of any keys.

    Args:
      name: its name, the same on all ranks.
      capacity: the largest number of keys on each rank.
      dim: the dimension of a row.
      key_dtype: the type of keys.
      initializer: draws the first row of a key, which depends only on seed, name and key. A function that the engine
        does not know draws [capacity, dim] once, and key k begins with row `k mod capacity`.
      trainable: as for variables.
    """

    __module__ = "sparse_operation_kit.core"

    # As in 1.x, indices of gradients are numbers of rows.
    gradients_by = "number"

    def __init__(
        self, name: str, capacity: int, dim: int, key_dtype: tf.DType, initializer: Any, trainable: bool
    ) -> None:
        self._describe(name, capacity, key_dtype)
        super().__init__(dim, initializer=initializer, var_type="hbm", name=name, trainable=trainable)

    def _lookups_made(self, make: Any = None, *, in_job: bool) -> lookups.Lookups:
        bounded = functools.partial(_BoundedLookups, capacity=self._capacity)
        return super()._lookups_made(make or bounded, in_job=in_job)

    def _adjusted(self, option: dynamic.EmbeddingVariableOption) -> dynamic.EmbeddingVariableOption:
        rows = dataclasses.replace(option.init_option, default_value_dim=self._capacity)
        return dataclasses.replace(option, init_option=rows)

    def __repr__(self) -> str:
        return f"<sok.EmbeddingVariable '{self.m_var_name}' shape={self.shape} dtype={self.dtype.name}>"


class _BoundedLookups(lookups.Lookups):
    """Lookups that fail if a rank has more keys than it may have.

    Args:
      *arguments: as for `lookups.Lookups`.
      capacity: the largest number of keys on each rank.
    """

    def __init__(self, *arguments: Any, capacity: int) -> None:
        super().__init__(*arguments)
        self._capacity = capacity

    def _resolve(self, keys: tf.Tensor, times: tf.Tensor | None, *, is_counted: bool) -> tf.Tensor:
        rows = super()._resolve(keys, times, is_counted=is_counted)
        with tf.control_dependencies([] if tf.executing_eagerly() else [rows]):
            count = library.ops.lockstep_dynamic_table_count(self._handle)[0]
        with checks.at_most(count, self._capacity, too_many_keys(self._name, self._capacity)):
            return tf.identity(rows)


def too_many_keys(name: str, capacity: int) -> str:
    """Returns the message about a rank with too many keys, which the number of keys follows."""
    return (
        f"table '{name}': rank {job.rank()} has more keys than max_vocabulary_size_per_gpu: wanted at most {capacity}, "
        "got"
    )


class IndexedTable(EmbeddingVariable, DistributedVariable):
    """A table of the keys 0 to V N - 1.

    Args:
      name: its name, the same on all ranks.
      capacity: the number of rows on each rank.
      dim: the dimension of a row.
      key_dtype: the type of keys.
      initializer: draws the whole table, [V N, D].
      trainable: as for variables.
    """

    __module__ = "sparse_operation_kit.core"

    def __init__(
        self, name: str, capacity: int, dim: int, key_dtype: tf.DType, initializer: Any, trainable: bool
    ) -> None:
        self._describe(name, capacity, key_dtype)
        super().__init__(
            initializer=initializer,
            shape=[capacity * job.num_ranks(), dim],
            dtype=tf.float32,
            name=name,
            trainable=trainable,
        )

    @property
    def dim(self) -> int:
        """The dimension D of the rows."""
        return self.global_shape[1]

    def __repr__(self) -> str:
        return f"<sok.EmbeddingVariable '{self.m_var_name}' shape={self.shape} dtype={self.dtype.name}>"


# How many tables have each name; of the process under eager execution, else of a graph.
_names: dict[str, int] = {}
_names_in_graphs: weakref.WeakKeyDictionary[tf.Graph, dict[str, int]] = weakref.WeakKeyDictionary()


def _unique_name(name: str) -> str:
    """Returns the name with a number, if other tables have it: all ranks make tables in the same order."""
    with tf.init_scope():
        names = _names
        if not tf.executing_eagerly():
            names = _names_in_graphs.setdefault(tf.compat.v1.get_default_graph(), {})
            scope = tf.compat.v1.get_default_graph().get_name_scope()
            name = f"{scope}/{name}" if scope else name
    count = names[name] = names.get(name, -1) + 1
    return f"{name}_{count}" if count else name
