"""Replicated variables whose pooled lookups are fused. Nothing else about these variables changes.

Dispatch by type needs a class (`dispatch.py`). So a variable that TensorFlow has created gets a subclass of its own
class. Its gradient stays `tf.IndexedSlices`, with a row for each distinct id, which a scope exchanges as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import control_flow_util, ref_variable, resource_variable_ops
from tensorflow.python.saved_model import save_context

from lockstep._src.engine import host_memory
from lockstep._src.tables.dynamic import modes
from lockstep._src.tables.sharded import ShardingRules, lookup_steps, row_reads

Creator = Callable[..., tf.Variable]

_RULES = ShardingRules()


class _Replicated:
    """The part of a replicated variable [rows, D] with which `lookups.py` makes fused lookups in it."""

    @property
    def logical_name(self: Any) -> str:
        """The variable's name, the same on all workers."""
        return self.name.split(":")[0]

    @property
    def fuses_lookups(self: Any) -> bool:
        """Whether a lookup that is made now may consist of this library's operations, which need the host's memory.

        It may not if TensorFlow without this library, or XLA, is to run it. So exported models, predictions of Keras
        3, and all functions of a program have TensorFlow's own operations: one that was traced in training may be
        saved later. In training, optimizers have operations of this library as well.
        """
        if not modes.is_training() or save_context.in_save_context():
            return False
        graph = None if tf.executing_eagerly() else ops.get_default_graph()
        if isinstance(graph, func_graph.FuncGraph) and not modes.is_training_of_keras():
            return False
        if graph is not None and control_flow_util.GraphOrParentsInXlaContext(graph):
            return False
        return host_memory.is_on_host(self.device)

    # Lookups exchange nothing.
    has_route = False

    def distinct_rows(self: Any, ids: tf.Tensor, problem: None = None) -> lookup_steps.DistinctRows:
        """Returns the row of each distinct id.

        Args:
          ids: integers of any shape, each in [0, rows). Otherwise running it raises InvalidArgumentError.
          problem: None: see `has_route`.
        """
        del problem
        rows, name = self.shape.as_list()[0], self.logical_name
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int64)
        route = lookup_steps.local_route(ids, rows, name, is_replicated=True)
        return lookup_steps.combine_distinct(self._read_rows(route.local_rows), route)


class ReplicatedTable(_Replicated, resource_variable_ops.ResourceVariable):
    """A replicated variable [rows, D] of TensorFlow 2, or of TensorFlow 1 with resources."""

    _read_rows = row_reads.read_rows


class ReplicatedRefTable(_Replicated, ref_variable.RefVariable):
    """A replicated variable [rows, D] of TensorFlow 1 without resources."""

    _read_rows = tf.gather


REPLICATED_TABLES = (ReplicatedTable, ReplicatedRefTable)
_TABLE_OF = {resource_variable_ops.ResourceVariable: ReplicatedTable, ref_variable.RefVariable: ReplicatedRefTable}


def fusing(create: Callable[..., tf.Variable]) -> Callable[..., tf.Variable]:
    """Returns a creator of replicated variables, `create(next_creator, ...)`, that makes matrices replicated tables."""

    @functools.wraps(create)
    def wrapped(next_creator: Creator, **kwargs: Any) -> tf.Variable:
        variable = create(next_creator, **kwargs)
        # Variables of other classes, such as a strategy's, have reads of their own.
        table = _TABLE_OF.get(type(variable))
        name = variable.name.split(":")[0]
        if table is not None and _RULES.is_table(name, variable.trainable, variable.dtype, variable.shape):
            variable.__class__ = table
        return variable

    return wrapped
