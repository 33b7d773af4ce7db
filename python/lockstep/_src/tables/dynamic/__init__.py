"""Dynamic tables in TensorFlow: embeddings for keys without a vocabulary (core/embedding is their engine)."""

from lockstep._src.tables.dynamic.creation import get_embedding_variable, make_table, tables_made_by
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
    KeyPlacement,
    L2WeightEvict,
    StorageOption,
    StorageType,
    TimeEvict,
)
from lockstep._src.tables.dynamic.variable import TABLES, DynamicVariable, dynamic_tables, is_dynamic

__all__ = [
    "TABLES",
    "BudgetEvict",
    "CBFFilter",
    "CacheStrategy",
    "CheckpointOption",
    "CounterFilter",
    "DynamicVariable",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "KeyPlacement",
    "L2WeightEvict",
    "StorageOption",
    "StorageType",
    "TimeEvict",
    "dynamic_tables",
    "evaluating",
    "get_embedding_variable",
    "is_dynamic",
    "make_table",
    "tables_made_by",
]
