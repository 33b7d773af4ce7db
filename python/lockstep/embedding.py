"""Dynamic tables, their options, feature columns over them, and lookups of many tables at once.

The names are DeepRec's; docs/deeprec.md explains their meaning here.
"""

from lockstep import _assembly  # noqa: F401
from lockstep._src.tables.dynamic.creation import get_embedding_variable
from lockstep._src.tables.dynamic.modes import evaluating
from lockstep._src.tables.dynamic.table_options import (
    BudgetEvict,
    CacheStrategy,
    CBFFilter,
    CheckpointOption,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
    StorageOption,
    StorageType,
    TimeEvict,
)
from lockstep._src.tables.features.columns import (
    categorical_column_with_embedding,
    embedding_column,
    group_embedding_column_scope,
    sequence_categorical_column_with_embedding,
    shared_embedding_columns,
)
from lockstep._src.tables.features.group_lookup import group_embedding_lookup, group_embedding_lookup_sparse

__all__ = [
    "BudgetEvict",
    "CBFFilter",
    "CacheStrategy",
    "CheckpointOption",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "StorageOption",
    "StorageType",
    "TimeEvict",
    "categorical_column_with_embedding",
    "embedding_column",
    "evaluating",
    "get_embedding_variable",
    "group_embedding_column_scope",
    "group_embedding_lookup",
    "group_embedding_lookup_sparse",
    "sequence_categorical_column_with_embedding",
    "shared_embedding_columns",
]
