"""A callback of Keras that writes the job's statistics for TensorBoard."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lockstep._src.collectives import statistics
from lockstep._src.engine import arguments, steps

# The mark of a scalar. `tf.summary.scalar` writes the same, but needs the package TensorBoard.
_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
)


class StatsCallback(tf.keras.callbacks.Callback):
    """A callback that writes statistics of the whole job as scalars for TensorBoard.

    Worker 0 writes, with the values of all workers: throughput, time of exchanges and waits, the ratio of distinct ids,
    sizes of tables, and the balance of the workers (docs/timeline.md lists the tags). Results of training do not
    change. All workers of the job need the callback, as the values are exchanged after every period.

    It also marks the steps of the timeline; give a model one such callback.

    Args:
      log_dir: the folder of the event files; only worker 0 uses it.
      every_n_steps: the number of batches of a period; each point covers only its period.
      batch_size: the number of examples of a batch of this worker. None: no number of examples per second is shown.

    Raises:
      TypeError: a number is not an integer.
      ValueError: a number is less than 1.
    """

    def __init__(self, log_dir: Any, every_n_steps: int = 100, batch_size: int | None = None) -> None:
        super().__init__()
        arguments.integer("StatsCallback", "every_n_steps", every_n_steps, 1)
        arguments.integer("StatsCallback", "batch_size", batch_size, 1)
        self._log_dir = tf.compat.path_to_str(log_dir)
        self._every_n_steps = every_n_steps
        self._batch_size = batch_size

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins the first period."""
        del logs
        rank, _ = statistics.place()
        self._writer = tf.summary.create_file_writer(self._log_dir) if rank == 0 else None
        self._periods = statistics.Periods(self._every_n_steps)
        self._batches = steps.Batches()
        self._step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Marks the step; at the end of a period, exchanges the values and writes them."""
        del logs
        count = self._batches.since_last(batch)
        for _ in range(count):
            steps.end_step()
        self._step += count
        values = self._periods.add(count, None if self._batch_size is None else self._batch_size * count)
        if values is None or self._writer is None:
            return
        with self._writer.as_default(step=self._step):
            for tag, value in values.items():
                tf.summary.write(tag, tf.constant(value), metadata=_SCALAR)
        self._writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        """Closes the file."""
        del logs
        if self._writer is not None:
            self._writer.close()
