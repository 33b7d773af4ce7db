"""The older place of SOK's API: `from sparse_operation_kit import experiment as sok`."""

from typing import Any

from lockstep._src.compat.sok import lookups as _lookups
from lockstep._src.compat.sok import older_lookup as _older_lookup
from sparse_operation_kit import (
    SGD,
    DistributedVariable,
    DynamicVariable,
    LocalizedVariable,
    OptimizerWrapper,
    Variable,
    all2all_dense_embedding,
    assign,
    communication,
    dump,
    export,
    filter_variables,
    incremental_model_dump,
    init,
    load,
    raw_ops,
    set_comm_tool,
    sparse_read_and_evict,
    tf_version,
)

__all__ = [
    "SGD",
    "DistributedVariable",
    "DynamicVariable",
    "LocalizedVariable",
    "OptimizerWrapper",
    "Variable",
    "all2all_dense_embedding",
    "assign",
    "communication",
    "dump",
    "export",
    "filter_variables",
    "incremental_model_dump",
    "init",
    "load",
    "lookup_sparse",
    "raw_ops",
    "set_comm_tool",
    "sparse_read_and_evict",
    "tf_version",
]


def lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any = None,
    combiners: Any = None,
    use_low_frequency_filter: bool = False,
    hotness: Any = None,
) -> Any:
    """Looks ids up like `sok.lookup_sparse`, and accepts the arguments of its earlier versions.

    Args:
      params: as for `sok.lookup_sparse`.
      sp_ids: as for `sok.lookup_sparse`.
      sp_weights: as for `sok.lookup_sparse`; or `combiners`; or `hotness`.
      combiners: as for `sok.lookup_sparse`.
      use_low_frequency_filter: as for `sok.lookup_sparse`.
      hotness: the most ids of an example, a number or a list of T; it is not needed here.

    Returns:
      What `sok.lookup_sparse` returns.

    Raises:
      TypeError: there are combiners in two arguments; and as for `sok.lookup_sparse`.
    """
    del hotness
    sp_weights, combiners = _older_lookup.arguments(sp_weights, combiners)
    return _lookups.lookup_sparse(params, sp_ids, sp_weights, combiners, use_low_frequency_filter)
