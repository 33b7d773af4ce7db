"""Which process this is, as operations that say it when they run: an elastic job's graph outlives its rounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from horovod.common.basics import HorovodBasics
from horovod.tensorflow.util import _executing_eagerly, as_it_is
from lockstep import named

_basics = HorovodBasics()


@as_it_is
def _when_it_runs(ask: Callable[[], int], name: str | None) -> tf.Tensor:
    """int32: what `ask` says when the operation runs."""
    if _executing_eagerly():
        return tf.constant(ask(), tf.int32)
    answer = tf.numpy_function(lambda: np.int32(ask()), [], tf.int32, name=name)
    answer.set_shape([])
    return answer


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """int32: number of ranks of a process set, when the operation runs."""
    return _when_it_runs(lambda: _basics.size() and len(named.ranks_of(process_set_id)), name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """int32: this process's rank, when the operation runs."""
    return _when_it_runs(_basics.rank, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """int32: number of processes on this host, when the operation runs."""
    return _when_it_runs(_basics.local_size, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """int32: this process's rank on its host, when the operation runs."""
    return _when_it_runs(_basics.local_rank, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """int32: 1 where this process is in a process set, 0 where not; -1 before `init`, -3 where there is no such set."""

    def included() -> int:
        if not _basics.is_initialized():
            return -1
        sets = named.process_sets()
        return int(_basics.rank() in sets[process_set_id]) if process_set_id in sets else -3

    return _when_it_runs(included, name)
