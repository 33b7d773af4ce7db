"""Feature columns over tables that grow: DeepRec's `categorical_column_with_embedding` and the columns that take it.

What TensorFlow builds of columns (`input_layer`, `DenseFeatures`, weighted and sequence columns) works on them as on
its own. Two of its functions make the table, and have to know that it grows: `embedding_column` and
`shared_embedding_columns` stand here, and hand other columns on to TensorFlow's.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc

from lockstep._src.tables.dynamic.creation import get_embedding_variable
from lockstep._src.tables.features.pooled import keep_ids, keep_positive, lookup_pooled

_tf1 = tf.compat.v1
_KEY_DTYPES = (tf.int32, tf.int64, tf.string)
_WEIGHTS = "embedding_weights"  # what TensorFlow's columns call their table
_HASHES = 2**63 - 1


def categorical_column_with_embedding(
    key: str, dtype: Any = tf.string, partition_num: int | None = None, ev_option: Any = None
) -> Any:
    """A categorical feature without a vocabulary: each of its values has a row of a table that grows.

    After DeepRec's `tf.feature_column.categorical_column_with_embedding` (Embedding-Variable.md). For
    `embedding_column`, `shared_embedding_columns` and `weighted_categorical_column`.

    Args:
      key: name of the feature: a `tf.SparseTensor`, or a tensor in which '' stands for "no value". In both, integers
        below 0 do, as in TensorFlow's columns.
      dtype: of the values: `tf.string`, `tf.int64` or `tf.int32`. The keys of strings are their hashes, of 63 bits.
      partition_num: taken, and without effect: keys are shared out over the workers.
      ev_option: an `EmbeddingVariableOption`; None: its defaults.

    Raises:
      ValueError: another `dtype`; `partition_num` not positive.
    """
    dtype = tf.as_dtype(dtype)
    if dtype not in _KEY_DTYPES:
        wanted = ", ".join(one.name for one in _KEY_DTYPES)
        raise ValueError(f"categorical_column_with_embedding: column {key!r} has dtype {dtype.name}, wanted {wanted}")
    if partition_num is not None and partition_num < 1:
        raise ValueError(
            f"categorical_column_with_embedding: column {key!r} has partition_num {partition_num}, wanted at least 1"
        )
    return EmbeddingCategoricalColumn(key, dtype, ev_option)


def sequence_categorical_column_with_embedding(
    key: str, dtype: Any = tf.string, partition_num: int | None = None, ev_option: Any = None
) -> Any:
    """The same for a feature of which an example has a sequence; after DeepRec's function of this name.

    For `embedding_column` in what reads sequences, such as `tf.keras.experimental.SequenceFeatures` of Keras 2.

    Args:
      key: as `categorical_column_with_embedding`'s, as are the others.
      dtype: of the values.
      partition_num: without effect.
      ev_option: an `EmbeddingVariableOption`.
    """
    return fc.SequenceCategoricalColumn(categorical_column_with_embedding(key, dtype, partition_num, ev_option))


class EmbeddingCategoricalColumn(
    fc.CategoricalColumn,
    fc_v1._CategoricalColumn,
    collections.namedtuple("EmbeddingCategoricalColumn", ("key", "dtype", "ev_option")),
):
    """What `categorical_column_with_embedding` returns. Methods are those that TensorFlow asks of such a column."""

    def __hash__(self) -> int:
        # Options may hold lists.
        return hash((self.key, self.dtype))

    @property
    def _is_v2_column(self) -> bool:
        return True

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """How the feature is read from a `tf.train.Example`."""
        return {self.key: tf.io.VarLenFeature(self.dtype)}

    _parse_example_spec = parse_example_spec

    def _transformed(self, tensor: Any) -> tf.SparseTensor:
        ids = fc._to_sparse_input_and_drop_ignore_values(tensor)
        if (ids.dtype == tf.string) != (self.dtype == tf.string) or not (
            ids.dtype.is_integer or ids.dtype == tf.string
        ):
            raise ValueError(f"column {self.key!r}: got {ids.dtype.name}, wanted {self.dtype.name}")
        keys = tf.strings.to_hash_bucket_fast(ids.values, _HASHES) if ids.dtype == tf.string else ids.values
        return ids.with_values(tf.cast(keys, tf.int64))

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> tf.SparseTensor:
        """The feature as sparse ids."""
        return self._transformed(transformation_cache.get(self.key, state_manager))

    def _transform_feature(self, inputs: Any) -> tf.SparseTensor:
        return self._transformed(inputs.get(self.key))

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Ids, without weights."""
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def _get_sparse_tensors(self, inputs: Any, weight_collections: Any = None, trainable: Any = None) -> Any:
        return self.IdWeightPair(inputs.get(self), None)

    @property
    def num_buckets(self) -> NoReturn:
        """There is no such number: raises ValueError."""
        raise ValueError(
            f"column {self.key!r} is over a table that grows, which has no number of buckets; give it to "
            "lockstep.embedding.embedding_column or shared_embedding_columns, which are tf.feature_column's with --tf1"
        )

    _num_buckets = num_buckets

    @property
    def parents(self) -> list[str]:
        """What it is made of."""
        return [self.key]

    def get_config(self) -> NoReturn:
        """Not to be had: raises NotImplementedError."""
        raise NotImplementedError(f"column {self.key!r} cannot be serialized; build it anew")

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> NoReturn:
        """Not to be had: raises NotImplementedError."""
        raise NotImplementedError("a column over a table that grows cannot be made of its configuration")


def _growing(column: Any) -> EmbeddingCategoricalColumn | None:
    """The column of this kind that a categorical column is, or wraps with weights or as a sequence; or None."""
    while not isinstance(column, EmbeddingCategoricalColumn):
        column = getattr(column, "categorical_column", None)
        if column is None:
            return None
    return column


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
    do_fusion: bool = False,
) -> Any:
    """A dense column of a table's rows, combined per example; `tf.feature_column.embedding_column`.

    Args:
      categorical_column: any; of `categorical_column_with_embedding` the table grows.
      dimension: of its rows.
      combiner: 'mean', 'sqrtn' or 'sum'.
      initializer: of rows; None: truncated normal, with the standard deviation 1/sqrt(dimension). That of the
        column's `ev_option`, where it has one, comes before it.
      ckpt_to_load_from: as TensorFlow's; refused for a table that grows.
      tensor_name_in_ckpt: as TensorFlow's.
      max_norm: rows are clipped to this norm before they are combined.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: as TensorFlow's; without effect on a table that grows, whose lookups are always safe.
      do_fusion: DeepRec's; without effect: lookups of a run are one exchange in any case.

    Raises:
      ValueError: as TensorFlow's.
      NotImplementedError: `ckpt_to_load_from` of a table that grows.
    """
    del do_fusion
    column = _tf1.feature_column.embedding_column(
        categorical_column,
        dimension,
        combiner=combiner,
        initializer=initializer,
        ckpt_to_load_from=ckpt_to_load_from,
        tensor_name_in_ckpt=tensor_name_in_ckpt,
        max_norm=max_norm,
        trainable=trainable,
        use_safe_embedding_lookup=use_safe_embedding_lookup,
    )
    growing = _growing(categorical_column)
    if growing is None:
        return column
    _check_no_checkpoint(growing, ckpt_to_load_from)
    return _GrowingEmbeddingColumn(*column)


def shared_embedding_columns(
    categorical_columns: Sequence[Any],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,
) -> list[Any]:
    """Dense columns of rows of one table; `tf.feature_column.shared_embedding_columns`, in graphs of TensorFlow 1.

    Args:
      categorical_columns: all of `categorical_column_with_embedding` with one `dtype` and one `ev_option`, or none.
      dimension: as `embedding_column`'s, as are the arguments that are not listed here.
      combiner: how the rows of an example are combined.
      initializer: of rows.
      shared_embedding_collection_name: of the table's scope and of the graph's collection that holds it; None: made of
        the features' names.
      ckpt_to_load_from: refused for a table that grows.
      tensor_name_in_ckpt: as TensorFlow's.
      max_norm: of rows.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: as TensorFlow's.

    Raises:
      RuntimeError: outside of a graph.
      ValueError: as TensorFlow's; columns that cannot share a table.
      NotImplementedError: `ckpt_to_load_from` of a table that grows.
    """
    arguments = {
        "dimension": dimension,
        "combiner": combiner,
        "initializer": initializer,
        "shared_embedding_collection_name": shared_embedding_collection_name,
        "ckpt_to_load_from": ckpt_to_load_from,
        "tensor_name_in_ckpt": tensor_name_in_ckpt,
        "max_norm": max_norm,
        "trainable": trainable,
        "use_safe_embedding_lookup": use_safe_embedding_lookup,
    }
    growing = [_growing(column) for column in categorical_columns]
    if not any(growing):
        return _tf1.feature_column.shared_embedding_columns(categorical_columns, **arguments)
    if tf.executing_eagerly():
        raise RuntimeError("shared_embedding_columns: as TensorFlow's, it works in graphs alone")
    names = sorted(column.name for column in categorical_columns)
    first = next(column for column in growing if column is not None)
    for column in growing:
        if column is None or (column.dtype, column.ev_option) != (first.dtype, first.ev_option):
            raise ValueError(
                f"shared_embedding_columns: columns {', '.join(names)} cannot share a table: wanted all of "
                "categorical_column_with_embedding, with one dtype and one ev_option"
            )
    _check_no_checkpoint(first, ckpt_to_load_from)
    # TensorFlow checks the other arguments, and knows their defaults.
    column = _tf1.feature_column.embedding_column(
        first, dimension, combiner, initializer, max_norm=max_norm, trainable=trainable
    )
    arguments["initializer"] = column.initializer
    arguments["shared_embedding_collection_name"] = shared_embedding_collection_name or (
        "_".join(names) + "_shared_embedding"
    )
    return [_GrowingSharedEmbeddingColumn(categorical_column=one, **arguments) for one in categorical_columns]


def _check_no_checkpoint(column: EmbeddingCategoricalColumn, checkpoint: str | None) -> None:
    if checkpoint is not None:
        raise NotImplementedError(
            f"column {column.key!r} is over a table that grows: ckpt_to_load_from is {checkpoint!r}, wanted None"
        )


@contextlib.contextmanager
def group_embedding_column_scope(name: str | None = "") -> Iterator[None]:
    """Columns that are made inside are looked up together; after DeepRec's function of this name (Group-Embedding.md).

    So are all others: the run of a graph has one exchange for all lookups that don't depend on each other
    (docs/sharding.md), and each column keeps the combiner and the weights that it has.

    Args:
      name: of the group; without effect.

    Raises:
      TypeError: `name` is no string.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"group_embedding_column_scope: name is {name!r}, wanted a string")
    yield


def _table(column: Any, trainable: bool, collections: Any) -> Any:
    """The table of an embedding column, made or, in a scope that reuses, found."""
    growing = _growing(column.categorical_column)
    if collections and _tf1.GraphKeys.GLOBAL_VARIABLES not in collections:
        collections.append(_tf1.GraphKeys.GLOBAL_VARIABLES)
    option = growing.ev_option
    # A column has an initializer in any case.
    is_in_option = option is not None and option.init_option.initializer is not None
    return get_embedding_variable(
        _WEIGHTS,
        embedding_dim=column.dimension,
        initializer=None if is_in_option else column.initializer,
        trainable=column.trainable and trainable,
        collections=collections,
        ev_option=option,
    )


def _looked_up(column: Any, sparse_tensors: Any, table: Any) -> tf.Tensor:
    # As TensorFlow's columns, which look up ids below 0 no more than those without weight.
    ids, weights = keep_ids(*sparse_tensors)
    if weights is not None and column.combiner != "sum":
        ids, weights = keep_positive(ids, weights)
    with tf.name_scope(f"{column.name}_weights"):
        return lookup_pooled(table, ids, weights, column.combiner, column.max_norm)


class _GrowingEmbeddingColumn(fc.EmbeddingColumn):
    """TensorFlow's column, with another table."""

    def create_state(self, state_manager: Any) -> None:
        state_manager._cols_to_vars_map[self][_WEIGHTS] = _table(self, state_manager._trainable, None)

    def _old_get_dense_tensor_internal(self, sparse_tensors: Any, weight_collections: Any, trainable: Any) -> tf.Tensor:
        return _looked_up(self, sparse_tensors, _table(self, trainable is not False, weight_collections))

    def _get_dense_tensor_internal_helper(self, sparse_tensors: Any, embedding_weights: Any) -> tf.Tensor:
        return _looked_up(self, sparse_tensors, embedding_weights)


class _GrowingSharedEmbeddingColumn(fc_v1._SharedEmbeddingColumn):
    """TensorFlow's column, with another table."""

    def _get_dense_tensor_internal(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> tf.Tensor:
        with _tf1.name_scope(None, self.name):
            sparse_tensors = self.categorical_column._get_sparse_tensors(inputs, weight_collections, trainable)
            shared = _tf1.get_collection_ref(self.shared_embedding_collection_name)
            if not shared:
                shared.append(_table(self, trainable is not False, weight_collections))
            return _looked_up(self, sparse_tensors, shared[0])
