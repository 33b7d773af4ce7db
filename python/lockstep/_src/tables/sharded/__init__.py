"""Embedding tables whose rows are distributed over the workers of the job; the variable's class does this.

`sharding_scope` turns variables that are created in it into `RowShardedTable`s if that is worth it. TensorFlow's own
lookups then work on them unchanged.
"""

from lockstep._src.tables.placement.shard import Shard
from lockstep._src.tables.sharded.lookup_steps import gather_table
from lockstep._src.tables.sharded.scatters import intercept_scatters
from lockstep._src.tables.sharded.seen_gradients import intercept_gradients, seen
from lockstep._src.tables.sharded.shard import (
    is_named_as_slot,
    is_sharded,
    is_table,
    note,
    register,
    shard_of,
    shard_of_slot,
    tables,
)
from lockstep._src.tables.sharded.sharding_rules import ShardingRules, intercept_creation, sharding_scope
from lockstep._src.tables.sharded.table import RowShardedTable

__all__ = [
    "RowShardedTable",
    "Shard",
    "ShardingRules",
    "gather_table",
    "intercept_creation",
    "intercept_gradients",
    "intercept_scatters",
    "is_named_as_slot",
    "is_sharded",
    "is_table",
    "note",
    "register",
    "seen",
    "shard_of",
    "shard_of_slot",
    "sharding_scope",
    "tables",
]
