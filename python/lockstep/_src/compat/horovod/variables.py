"""Variables that get the values of one rank.

Tables whose rows are distributed over the ranks keep their rows, as do optimizers' slots for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.compat.horovod import collectives
from lockstep._src.compat.horovod.process_sets import ProcessSet, global_process_set
from lockstep._src.tables import sharded
from lockstep._src.tables.sharded import is_table


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> tf.Operation | None:
    """Gives variables the values of a rank; see `horovod.tensorflow.broadcast_variables`."""
    variables = [v for v in _checked("broadcast_variables", variables) if not _has_rows_of_its_own(v)]
    if not variables:
        return None if tf.executing_eagerly() else tf.no_op()
    if not tf.executing_eagerly():
        assigned = []
        for variable in variables:
            name = "HorovodBroadcast_" + re.sub("[^a-zA-Z0-9_]", "_", variable.name)
            (value,) = collectives.broadcast([variable], root_rank, name, False, process_set)
            assigned.append(variable.assign(value))
        # Keras' variables return None. A `tf.function` runs their assignments without being told to.
        return tf.group(*[one for one in assigned if one is not None])
    # Without names, which may differ over ranks where these have made other variables before.
    values = collectives.broadcast(variables, root_rank, None, False, process_set)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return None


def broadcast_in_place(
    variables: Sequence[tf.Variable], root_rank: int, name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Gives variables the values of a rank, and returns these; see `horovod.tensorflow.broadcast_`."""
    variables = _checked("broadcast_", variables)
    if table := next((v.name for v in variables if _has_rows_of_its_own(v)), None):
        raise ValueError(
            f"broadcast_: got table '{table}', whose rows differ by rank; wanted variables that have the same value "
            "on all ranks"
        )
    if len({hasattr(variable, "handle") for variable in variables}) > 1:
        raise ValueError("broadcast_: some variables are resources and some are references, wanted all of one kind")
    values = collectives.broadcast(variables, root_rank, name, False, process_set)
    assigned = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    if tf.executing_eagerly():
        return values
    with tf.control_dependencies([tf.group(*assigned)]):
        return [tf.identity(value) for value in values]


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Returns the operation that gives the graph's global variables the values of a rank; RuntimeError eagerly."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables: eager execution has no global variables; use "
            "hvd.broadcast_variables(variables of the model and its optimizer, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives the graph's global variables the values of one rank, once a session exists.

    Args:
      root_rank: the rank whose values they get.
      device: where the operation is put in the graph.
    """

    __module__ = "horovod.tensorflow"

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: tf.Operation | None = None

    def begin(self) -> None:
        """Adds the operation to the graph, once."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the operation."""
        session.run(self.bcast_op)


def _has_rows_of_its_own(variable: Any) -> bool:
    """Returns whether a variable is a table whose rows are on several ranks, or an optimizer's slot for one."""
    return is_table(variable) or sharded.is_named_as_slot(variable)


def _checked(what: str, variables: Iterable[Any]) -> list[Any]:
    """Returns a list of variables; raises ValueError, which names the caller `what`, for values that cannot be set."""
    variables = list(variables)
    for variable in variables:
        if not hasattr(variable, "assign"):
            raise ValueError(f"{what}: got {type(variable).__name__}, wanted variables, which can be assigned")
    return variables
