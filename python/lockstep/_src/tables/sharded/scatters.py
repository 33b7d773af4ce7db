"""Checks TensorFlow's scatters into sharded tables: they must use the shard's row numbers, as gradients do.

An optimizer scatters into the rows that a gradient names, and these are numbers of rows of this worker's shard. A
program that calls `tf.compat.v1.scatter_update(table, [3], ...)` means the row of id 3, which is another one. The
origin of the indices tells the two apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.graph import ancestry, parts
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.sharded import shard


def are_rows_of_the_shard(indices: Any) -> bool:
    """Returns whether indices in a graph are computed from rows that a lookup read, as its gradient's indices are.

    If a lookup is in a branch or a loop's body, this holds for all results of the conditional or loop.
    """
    if not hasattr(indices, "graph"):
        return False
    behind: set[tf.Operation] = set()
    return ancestry.stems_from(indices.op, lambda op: parts.SHARD_ROWS in op.node_def.attr, behind) or any(
        parts.SHARD_ROWS in node.attr for node in ancestry.nodes_of_functions(behind)
    )


def check_scatter(variable: Any, indices: Any, what: str) -> None:
    """Raises NotImplementedError for a scatter into a sharded table or slot by other indices than rows of it."""
    if context.world_size == 1 or not shard.is_sharded(variable) or are_rows_of_the_shard(indices):
        return
    raise NotImplementedError(
        f"table '{variable.name}': {what} takes rows of this worker's shard, such as the indices of a gradient; got "
        f"{getattr(indices, 'name', indices)!r}, which may hold ids of the whole table. Assign a whole table instead"
    )


def intercept_scatters(interception: Interception) -> None:
    """Makes TensorFlow's scatter functions refuse ids of sharded tables, for the time of the interception."""
    for hook in symbols.SCATTERS:
        interception.replace(hook, functools.partial(_guard, hook.name))


def _guard(name: str, scatter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scatter)
    def wrapped(ref: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        check_scatter(ref, indices, f"tf.{name}")
        return scatter(ref, indices, *args, **kwargs)

    return wrapped
