"""Columns that DeepRec has in `tf.feature_column`, and TensorFlow's columns over them."""

from lockstep.embedding import (
    categorical_column_with_embedding,
    embedding_column,
    group_embedding_column_scope,
    sequence_categorical_column_with_embedding,
    shared_embedding_columns,
)

__all__ = [
    "categorical_column_with_embedding",
    "embedding_column",
    "group_embedding_column_scope",
    "sequence_categorical_column_with_embedding",
    "shared_embedding_columns",
]
