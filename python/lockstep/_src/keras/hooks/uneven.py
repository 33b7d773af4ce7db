"""Epochs of `fit` in which workers have different numbers of batches: a warning, and counters of progress bars.

By default an epoch ends for all workers when the first one has no batch left. The rest of the others' data is not
trained. This module does not import Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context

# Stands for a number of batches that nobody knows before the data ends.
UNKNOWN = -1
# Shares of equal size may differ by one batch, the last one.
_USUAL = 1


class Epochs:
    """The epochs of a thread's training."""

    def __init__(self) -> None:
        self._has_warned = False

    def warn(self, trained: int, batches: Sequence[int], has_more: Callable[[], bool]) -> None:
        """Warns once, on worker 0, of an epoch that has left out more than the usual remainder of a worker's data.

        All workers call this together, with the same numbers: they exchange `has_more` if a number is unknown.

        Args:
          trained: the number of batches of each worker that the epoch has trained.
          batches: for each worker the number of batches in its data; UNKNOWN where nobody knows.
          has_more: returns whether this worker has another batch behind the usual remainder. It is called if this
            worker's number is unknown.
        """
        if self._has_warned:
            return
        left_out = {rank: str(count - trained) for rank, count in enumerate(batches) if count - trained > _USUAL}
        if UNKNOWN in batches:
            more = tf.constant([batches[context.rank] == UNKNOWN and has_more()])
            flags = ordered.allgather(tf.cast(more, tf.int64), name="batches_left_out").numpy()
            left_out.update((rank, f"at least {_USUAL + 1}") for rank, flag in enumerate(flags) if flag)
        self._has_warned = bool(left_out)
        if not left_out or context.rank != 0:
            return
        of_ranks = ", ".join("unknown" if count == UNKNOWN else str(count) for count in batches)
        tf.compat.v1.logging.warning(
            "The epoch ended for all workers after %d batches, because a worker had no more data. Numbers of batches "
            "by rank: %s. Not trained: %s. Give all workers equal shares (lockstep.data.shard) and the same batch "
            "size. Or use scope(data_sync_drop_remainder=False), which trains until the last worker's data ends.",
            trained,
            of_ranks,
            ", ".join(f"{count} batches of rank {rank}" for rank, count in sorted(left_out.items())),
        )


def show_true_count(callbacks: Any) -> None:
    """Makes progress bars end with the number of batches that were trained, in place of those in the worker's data.

    Args:
      callbacks: a `CallbackList` of Keras.
    """
    for callback in getattr(callbacks, "callbacks", []):
        seen, bar = getattr(callback, "seen", None), getattr(callback, "progbar", None)
        if bar is not None and seen and callback.target is not None and callback.target != seen:
            callback.target = bar.target = seen
