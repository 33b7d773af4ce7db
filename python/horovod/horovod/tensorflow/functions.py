"""Variables and Python objects on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.util import without_autograph
from lockstep._src.compat.horovod import objects
from lockstep._src.compat.horovod import variables as of_ranks
from lockstep._src.compat.horovod.variables import BroadcastGlobalVariablesHook

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@without_autograph
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Gives variables the values that they have on the rank `root_rank`.

    Args:
      variables: as many on all ranks, of the same shapes, in the same order: TensorFlow's or Keras'.
      root_rank: among all ranks of the job.
      process_set: the set whose ranks take part.
      inplace: accepted without effect.

    Returns:
      In a graph the operation that does it; None eagerly, when it is done.

    Raises:
      ValueError: something in `variables` is none.
    """
    return of_ranks.broadcast_variables(variables, root_rank, process_set)


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Returns the operation that gives the graph's global variables their values on the rank `root_rank`.

    Raises:
      RuntimeError: eagerly, where there are no such variables.
    """
    return of_ranks.broadcast_global_variables(root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of the rank `root_rank` on all ranks. Runs at once, also in a graph.

    Args:
      obj: the root's object, which cloudpickle can pickle; the other ranks' are ignored.
      root_rank: among all ranks of the job.
      session: not needed.
      name: the same on all ranks; calls without one are numbered.
      process_set: the set whose ranks take part.

    Raises:
      ValueError: the ranks name different roots, or the object cannot be pickled; the root gets the pickler's error.
      tf.errors.InvalidArgumentError: the root is not in the set.
      tf.errors.DataLossError: the received bytes differ from the sent ones; they are not unpickled.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that does `broadcast_object` of its argument."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, by rank. Runs at once, also in a graph.

    Args:
      obj: this rank's object, which cloudpickle can pickle.
      session: not needed.
      name: the same on all ranks; calls without one are numbered.
      process_set: the set whose ranks take part.

    Raises:
      ValueError: the object of another rank cannot be pickled; that rank gets the pickler's error.
      tf.errors.DataLossError: the received bytes differ from the sent ones; they are not unpickled.
    """
    return objects.allgather_object(obj, name, process_set)
