"""Hooks of sessions that mark steps, and that write the job's statistics for TensorBoard."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import statistics
from lockstep._src.engine import arguments, steps

_tf1 = tf.compat.v1


class StepMarks(tf.compat.v1.train.SessionRunHook):
    """A hook that marks each run of a session as a step (`engine/steps.py`)."""

    stops_alike = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        steps.end_run(run_context)


class StatsHook(tf.compat.v1.train.SessionRunHook):
    """A hook that writes statistics of the whole job as summaries for TensorBoard.

    Worker 0 writes, with the values of all workers: throughput, time of exchanges and waits, the ratio of distinct ids,
    sizes of tables, and the balance of the workers (docs/timeline.md lists the tags). Results of training do not
    change. All workers of the job need the hook, in `hooks` and not in `chief_only_hooks`, as the values are exchanged
    after every period.

    Args:
      output_dir: the folder of the event files; only worker 0 uses it.
      every_n_steps: the number of steps of a period; each point covers only its period.
      count: the number of examples of this worker in a step: a number, or a tensor that each step evaluates. None:
        there is no number of examples per second.

    Raises:
      TypeError: `every_n_steps` is not an integer.
      ValueError: it is less than 1.
    """

    stops_alike = True

    def __init__(self, output_dir: Any, every_n_steps: int = 100, count: Any = None) -> None:
        arguments.integer("StatsHook", "every_n_steps", every_n_steps, 1)
        self._output_dir = output_dir
        self._every_n_steps = every_n_steps
        self._count = count
        self._is_fetched = isinstance(count, (tf.Tensor, tf.Variable))

    def begin(self) -> None:
        self._global_step = _tf1.train.get_global_step()
        self._steps = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        del session, coord
        rank, _ = statistics.place()
        self._writer = _EventWriter(tf.compat.path_to_str(self._output_dir)) if rank == 0 else None
        self._periods = statistics.Periods(self._every_n_steps)

    def before_run(self, run_context: Any) -> Any:
        del run_context
        return _tf1.train.SessionRunArgs(self._count) if self._is_fetched else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        steps.end_run(run_context)
        self._steps += 1
        examples = None
        if self._count is not None:
            examples = float(np.sum(run_values.results if self._is_fetched else self._count))
        values = self._periods.add(1, examples)
        if values is None or self._writer is None:
            return
        step = self._steps if self._global_step is None else int(run_context.session.run(self._global_step))
        self._writer.write(values, step)

    def end(self, session: Any) -> None:
        del session
        if self._writer is not None:
            self._writer.close()


class _EventWriter:
    """A writer of scalars to event files, without a graph."""

    def __init__(self, folder: str) -> None:
        # In graph mode, TensorFlow's FileWriter needs no operations; in eager mode it does not exist.
        self._writer = _tf1.summary.FileWriterCache.get(folder)

    def write(self, values: dict[str, float], step: int) -> None:
        """Writes scalars by tag."""
        summary = _tf1.Summary(value=[_tf1.Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])
        self._writer.add_summary(summary, step)
        self._writer.flush()

    def close(self) -> None:
        """Writes what is left."""
        self._writer.flush()
