"""Variables and Python objects on all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.util import as_it_is
from lockstep import named


@as_it_is
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
      process_set: whose ranks take part.
      inplace: accepted; nothing depends on it.

    Returns:
      In a graph the operation that does it; None eagerly, when it is done.

    Raises:
      ValueError: something in `variables` is none.
    """
    variables = mpi_ops.checked_variables("broadcast_variables", variables)
    if not variables:
        return None if tf.executing_eagerly() else tf.no_op()
    if not tf.executing_eagerly():
        assigned = []
        for variable in variables:
            name = "HorovodBroadcast_" + re.sub("[^a-zA-Z0-9_]", "_", variable.name)
            assigned.append(variable.assign(mpi_ops.broadcast(variable, root_rank, name, process_set=process_set)))
        # Keras' variables say nothing: a `tf.function` runs what they do without being told.
        return tf.group(*[one for one in assigned if one is not None])
    # Without names, which may differ over ranks where these have made other variables before.
    values = mpi_ops._grouped_broadcast(variables, root_rank, None, False, process_set)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return None


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of the rank `root_rank`, which cloudpickle can pickle, on all ranks. Runs at once, also in a graph.

    Args:
      obj: of the root; what the others give is not looked at.
      root_rank: among all ranks of the job.
      session: not needed.
      name: the same on all ranks; calls without one are numbered.
      process_set: whose ranks take part.

    Raises:
      ValueError: the ranks name different roots, or the object cannot be pickled; the root gets the pickler's error.
      tf.errors.InvalidArgumentError: the root is not in the set.
      tf.errors.DataLossError: what came is not what the root sent; it is not unpickled.
    """
    what = f"broadcast_object {name or ''}".strip()
    with (
        mpi_ops._taking_part("broadcast_object", process_set, at_once=True) as group,
        mpi_ops.root_in(process_set, root_rank, what) as root,
    ):
        is_root = mpi_ops.rank() == root_rank
        data, failure = _pickled(obj) if is_root else (b"", None)
        received = named.broadcast_bytes(data, root, name=name, group=group, operation="broadcast_object")
    if failure is not None:
        raise failure
    return obj if is_root else _unpickled(received, what, root_rank)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function that does `broadcast_object` of its argument."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The objects of all ranks, by rank, which cloudpickle can pickle. Runs at once, also in a graph.

    Args:
      obj: of this rank.
      session: not needed.
      name: the same on all ranks; calls without one are numbered.
      process_set: whose ranks take part.

    Raises:
      ValueError: the object of another rank cannot be pickled; that rank gets the pickler's error.
      tf.errors.DataLossError: what came is not what a rank sent; it is not unpickled.
    """
    what = f"allgather_object {name or ''}".strip()
    with mpi_ops._taking_part("allgather_object", process_set, at_once=True) as group:
        data, failure = _pickled(obj)
        gathered = named.gather_bytes(data, name=name, group=group, operation="allgather_object")
        ranks = named.ranks_of(group)
    if failure is not None:
        raise failure
    return [_unpickled(data, what, rank) for data, rank in zip(gathered, ranks, strict=True)]


class _Failure:
    """Travels instead of an object that cannot be pickled: the others would wait for it."""

    def __init__(self, why: str):
        self.why = why


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    """The object as bytes; and the error, where these are a _Failure."""
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:  # whatever an object's own code raises
        return cloudpickle.dumps(_Failure(f"{type(error).__name__}: {error}")), error


def _unpickled(data: bytes, what: str, rank: int) -> Any:
    """The object of a rank; ValueError where it could not be pickled."""
    obj = cloudpickle.loads(data)
    if isinstance(obj, _Failure):
        raise ValueError(f"{what}: the object of rank {rank} cannot be pickled: {obj.why}")
    return obj
