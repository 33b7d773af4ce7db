"""Feature columns over dynamic tables: DeepRec's `categorical_column_with_embedding`, and columns built on it.

TensorFlow's functions and layers of columns (`input_layer`, `DenseFeatures`, weighted and sequence columns) accept
these columns like its own. Two of its functions create the table, and must know that it is dynamic: `embedding_column`
and `shared_embedding_columns`. This module has its own versions, which pass other columns to TensorFlow's.
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
from lockstep._src.tables.pooling import lookup_valid

_tf1 = tf.compat.v1
_KEY_DTYPES = (tf.int32, tf.int64, tf.string)
_WEIGHTS = "embedding_weights"  # the name of the table in TensorFlow's columns
_HASHES = 2**63 - 1


def categorical_column_with_embedding(
    key: str, dtype: Any = tf.string, partition_num: int | None = None, ev_option: Any = None
) -> Any:
    """Returns a categorical feature without a vocabulary: each of its values has a row of a dynamic table.

    After DeepRec's `tf.feature_column.categorical_column_with_embedding` (Embedding-Variable.md). For use in
    `embedding_column`, `shared_embedding_columns` and `weighted_categorical_column`.

    Args:
      key: the name of the feature. The feature is a `tf.SparseTensor`, or a tensor in which '' stands for "no value".
        In both, integers below 0 also stand for "no value", as in TensorFlow's columns.
      dtype: the type of the values: `tf.string`, `tf.int64` or `tf.int32`. The keys of strings are hashes of 63 bits.
      partition_num: accepted without effect: keys are distributed over the workers.
      ev_option: an `EmbeddingVariableOption`; None: its defaults.

    Raises:
      ValueError: the `dtype` is another one, or `partition_num` is not positive.
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
    """Returns the same for a feature with a sequence per example; after DeepRec's function of this name.

    For `embedding_column` in readers of sequences, such as `tf.keras.experimental.SequenceFeatures` of Keras 2.

    Args:
      key: the name of the feature, as in `categorical_column_with_embedding`.
      dtype: the type of the values.
      partition_num: accepted without effect.
      ev_option: an `EmbeddingVariableOption`.

    Raises:
      ValueError: as `categorical_column_with_embedding`.
    """
    return fc.SequenceCategoricalColumn(categorical_column_with_embedding(key, dtype, partition_num, ev_option))


class EmbeddingCategoricalColumn(
    fc.CategoricalColumn,
    fc_v1._CategoricalColumn,
    collections.namedtuple("EmbeddingCategoricalColumn", ("key", "dtype", "ev_option")),
):
    """The column of `categorical_column_with_embedding`; its methods are those that TensorFlow calls."""

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
        """The specification by which the feature is read from a `tf.train.Example`."""
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
        """Returns the feature as sparse ids."""
        return self._transformed(transformation_cache.get(self.key, state_manager))

    def _transform_feature(self, inputs: Any) -> tf.SparseTensor:
        return self._transformed(inputs.get(self.key))

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """Returns the ids, without weights."""
        return self.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def _get_sparse_tensors(self, inputs: Any, weight_collections: Any = None, trainable: Any = None) -> Any:
        return self.IdWeightPair(inputs.get(self), None)

    @property
    def num_buckets(self) -> NoReturn:
        """Raises ValueError: a dynamic table has no fixed number of buckets."""
        raise ValueError(
            f"column {self.key!r}: a dynamic table has no fixed num_buckets; pass the column to lockstep.embedding's "
            "embedding_column or shared_embedding_columns, which with --tf1 replace those in tf.feature_column"
        )

    _num_buckets = num_buckets

    @property
    def parents(self) -> list[str]:
        """The feature from which the column is made."""
        return [self.key]

    def get_config(self) -> NoReturn:
        """Raises NotImplementedError: the column has no configuration."""
        raise NotImplementedError(f"column {self.key!r} cannot be serialized; create it again in the program")

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None, columns_by_name: Any = None) -> NoReturn:
        """Raises NotImplementedError: the column has no configuration."""
        raise NotImplementedError(
            "a column over a dynamic table cannot be made from a configuration; call categorical_column_with_embedding"
        )


def _dynamic_column(column: Any) -> EmbeddingCategoricalColumn | None:
    """Returns the column of this kind that a categorical column is or wraps (with weights, as a sequence); or None."""
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
    """Returns a dense column of a table's rows, combined per example; like `tf.feature_column.embedding_column`.

    Args:
      categorical_column: any categorical column. For one of `categorical_column_with_embedding`, the table is dynamic.
      dimension: the dimension of the rows.
      combiner: 'mean', 'sqrtn' or 'sum'.
      initializer: the initializer of rows; None: truncated normal, with the standard deviation 1/sqrt(dimension). An
        initializer in the column's `ev_option` takes precedence.
      ckpt_to_load_from: as in TensorFlow; must be None for a dynamic table.
      tensor_name_in_ckpt: as in TensorFlow.
      max_norm: rows are clipped to this norm before they are combined.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: as in TensorFlow; without effect on a dynamic table, whose lookups are always safe.
      do_fusion: an argument of DeepRec, without effect: lookups of a run always share one exchange.

    Raises:
      ValueError: as in TensorFlow.
      NotImplementedError: `ckpt_to_load_from` is given for a dynamic table.
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
    dynamic = _dynamic_column(categorical_column)
    if dynamic is None:
        return column
    _check_no_checkpoint(dynamic, ckpt_to_load_from)
    return _DynamicEmbeddingColumn(*column)


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
    """Returns dense columns of rows of one table; like `tf.feature_column.shared_embedding_columns` of TensorFlow 1.

    Args:
      categorical_columns: categorical columns. Either all or none are of `categorical_column_with_embedding`; if all
        are, they have one `dtype` and one `ev_option`.
      dimension: the dimension of the rows.
      combiner: how the rows of an example are combined.
      initializer: the initializer of rows, as in `embedding_column`.
      shared_embedding_collection_name: the name of the table's scope and of the graph's collection that holds the
        table; None: a name made from the features' names.
      ckpt_to_load_from: must be None for a dynamic table.
      tensor_name_in_ckpt: as in TensorFlow.
      max_norm: rows are clipped to this norm before they are combined.
      trainable: whether the table is trained.
      use_safe_embedding_lookup: as in TensorFlow.

    Raises:
      RuntimeError: the program has no graph, as under eager execution.
      ValueError: as in TensorFlow, or the columns cannot share a table.
      NotImplementedError: `ckpt_to_load_from` is given for a dynamic table.
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
    dynamic = [_dynamic_column(column) for column in categorical_columns]
    if not any(dynamic):
        return _tf1.feature_column.shared_embedding_columns(categorical_columns, **arguments)
    if tf.executing_eagerly():
        raise RuntimeError(
            "shared_embedding_columns: got eager execution, but like TensorFlow's function it works only in graphs; "
            "use a tf.Graph"
        )
    names = sorted(column.name for column in categorical_columns)
    first = next(column for column in dynamic if column is not None)
    for column in dynamic:
        if column is None or (column.dtype, column.ev_option) != (first.dtype, first.ev_option):
            raise ValueError(
                f"shared_embedding_columns: columns {', '.join(names)} cannot share a table; wanted only "
                "columns of categorical_column_with_embedding, with one dtype and one ev_option"
            )
    _check_no_checkpoint(first, ckpt_to_load_from)
    # TensorFlow checks the other arguments and fills in their defaults.
    column = _tf1.feature_column.embedding_column(
        first, dimension, combiner, initializer, max_norm=max_norm, trainable=trainable
    )
    arguments["initializer"] = column.initializer
    arguments["shared_embedding_collection_name"] = shared_embedding_collection_name or (
        "_".join(names) + "_shared_embedding"
    )
    return [_DynamicSharedEmbeddingColumn(categorical_column=one, **arguments) for one in categorical_columns]


def _check_no_checkpoint(column: EmbeddingCategoricalColumn, checkpoint: str | None) -> None:
    if checkpoint is not None:
        raise NotImplementedError(
            f"column {column.key!r} has a dynamic table: ckpt_to_load_from is {checkpoint!r}, wanted None"
        )


@contextlib.contextmanager
def group_embedding_column_scope(name: str | None = "") -> Iterator[None]:
    """Accepts columns inside that DeepRec would look up together; after its function of this name (Group-Embedding.md).

    It has no effect, as all columns are looked up together: the run of a graph has one exchange for all lookups that
    don't depend on each other (docs/sharding.md). Each column keeps its own combiner and weights.

    Args:
      name: the name of the group; without effect.

    Raises:
      TypeError: `name` is not a string.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"group_embedding_column_scope: name is {name!r}, wanted a string")
    yield


def _table(column: Any, trainable: bool, collections: Any) -> Any:
    """Returns the table of an embedding column: a new one or, in a scope that reuses, an existing one."""
    dynamic = _dynamic_column(column.categorical_column)
    assert dynamic is not None
    if collections and _tf1.GraphKeys.GLOBAL_VARIABLES not in collections:
        collections.append(_tf1.GraphKeys.GLOBAL_VARIABLES)
    option = dynamic.ev_option
    # A column always has an initializer.
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
    # TensorFlow's columns also skip ids below 0, and ids without weight.
    with tf.name_scope(f"{column.name}_weights"):
        ids, weights = sparse_tensors
        return lookup_valid(table, ids, weights, column.combiner, column.max_norm)


class _DynamicEmbeddingColumn(fc.EmbeddingColumn):
    """TensorFlow's column, with a dynamic table."""

    def create_state(self, state_manager: Any) -> None:
        state_manager._cols_to_vars_map[self][_WEIGHTS] = _table(self, state_manager._trainable, None)

    def _old_get_dense_tensor_internal(self, sparse_tensors: Any, weight_collections: Any, trainable: Any) -> tf.Tensor:
        return _looked_up(self, sparse_tensors, _table(self, trainable is not False, weight_collections))

    def _get_dense_tensor_internal_helper(self, sparse_tensors: Any, embedding_weights: Any) -> tf.Tensor:
        return _looked_up(self, sparse_tensors, embedding_weights)


class _DynamicSharedEmbeddingColumn(fc_v1._SharedEmbeddingColumn):
    """TensorFlow's shared column, with a dynamic table."""

    def _get_dense_tensor_internal(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> tf.Tensor:
        with _tf1.name_scope(None, self.name):
            sparse_tensors = self.categorical_column._get_sparse_tensors(inputs, weight_collections, trainable)
            shared = _tf1.get_collection_ref(self.shared_embedding_collection_name)
            if not shared:
                shared.append(_table(self, trainable is not False, weight_collections))
            return _looked_up(self, sparse_tensors, shared[0])
