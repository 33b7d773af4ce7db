"""The global variables of a graph on all ranks, for programs of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.tensorflow.functions import broadcast_variables


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """The operation that gives the graph's global variables the values that they have on the rank `root_rank`.

    Raises:
      RuntimeError: eagerly, where there are no such variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables: eagerly there are no global variables; use "
            "hvd.broadcast_variables(variables of the model and its optimizer, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives the graph's global variables the values of one rank, when a session was made.

    Args:
      root_rank: whose values they get.
      device: where the operation is put in the graph.
    """

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: tf.Operation | None = None

    def begin(self) -> None:
        """Adds the operation to the graph, once."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self.bcast_op)
