"""The place of this process as operations, because an elastic job's graph outlives its rounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import named_job
from lockstep._src.compat.horovod import job


def int_at_run_time(ask: Callable[[], int], name: str | None) -> tf.Tensor:
    """Returns the answer of `ask`, int32, as of the moment when the operation runs."""
    if tf.executing_eagerly():
        return tf.constant(ask(), tf.int32)
    answer = tf.numpy_function(lambda: np.int32(ask()), [], tf.int32, name=name)
    answer.set_shape([])
    return answer


def size_of(process_set_id: int) -> int:
    """Returns the number of ranks of a process set; raises ValueError before `init`."""
    return job.ask(lambda: len(named_job.ranks_of(process_set_id)))


def included(process_set_id: int) -> int:
    """Returns 1 if this process is in a process set, otherwise 0; -1 before `init`, -3 if there is no such set."""
    if not named_job.is_started():
        return -1
    sets = named_job.process_sets()
    return int(job.rank() in sets[process_set_id]) if process_set_id in sets else -3
