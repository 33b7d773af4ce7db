"""Tables that grow with their keys, their options, feature columns over them, and lookups of many tables at once.

Names are DeepRec's; docs/deeprec.md says what they mean here.
"""

from lockstep._src.features.columns import (
    categorical_column_with_embedding,
    embedding_column,
    group_embedding_column_scope,
    sequence_categorical_column_with_embedding,
    shared_embedding_columns,
)
from lockstep._src.features.group_lookup import group_embedding_lookup, group_embedding_lookup_sparse

__all__ = [
    "categorical_column_with_embedding",
    "embedding_column",
    "group_embedding_column_scope",
    "group_embedding_lookup",
    "group_embedding_lookup_sparse",
    "sequence_categorical_column_with_embedding",
    "shared_embedding_columns",
]
