"""The part of this process in a collective of a process set: whether it is a member, and the root's rank there."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator

import tensorflow as tf

from lockstep._src.collectives import named_job
from lockstep._src.compat.horovod import job
from lockstep._src.compat.horovod.process_sets import ProcessSet, number_of


@contextlib.contextmanager
def taking_part(what: str, process_set: ProcessSet, at_once: bool = False) -> Iterator[int]:
    """Yields the number of a process set, for the operations that are made inside.

    Args:
      what: the operation's name in messages.
      process_set: the set whose ranks take part.
      at_once: operations run inside, also where TensorFlow builds a graph.

    Raises:
      ValueError: there is no such set.
      tf.errors.InvalidArgumentError: this process is not in the set. In a graph, which may be the same on all ranks,
        the operation raises it when it runs.
    """
    group, own = number_of(process_set, what), job.rank()
    ranks = named_job.ranks_of(group)
    if own in ranks:
        yield group
        return
    message = f"{what}: rank {own} is not a member of process set {group}, which has the ranks {ranks}"
    if at_once or tf.executing_eagerly():
        raise tf.errors.InvalidArgumentError(None, None, message)
    with tf.control_dependencies([tf.raw_ops.Assert(condition=False, data=[message])]):
        yield group


@contextlib.contextmanager
def root_in(process_set: ProcessSet, root_rank: int, what: str) -> Iterator[int]:
    """Yields the rank in `process_set` of the root, which callers count among all ranks of the job.

    For a root that is not in the set it yields an invalid rank, which the lane refuses on all ranks. Otherwise ranks
    that name another root would wait for this one. The lane's error is then raised in the caller's terms.

    Raises:
      ValueError: the root is not an integer, or there is no such set.
      tf.errors.InvalidArgumentError: something ran inside, and the root is not in the set.
    """
    group = number_of(process_set, what)
    if not isinstance(root_rank, numbers.Integral):
        raise ValueError(f"{what}: root_rank is {root_rank!r}, wanted a rank")
    job.rank()  # raises without a job
    ranks = named_job.ranks_of(group)
    if root_rank in ranks:
        yield ranks.index(root_rank)
        return
    try:
        yield -1 if 0 <= root_rank < len(ranks) else root_rank
    except tf.errors.InvalidArgumentError as error:
        message = f"{what}: root_rank is {root_rank}, wanted one of the ranks {ranks}"
        raise tf.errors.InvalidArgumentError(error.node_def, error.op, message) from None
