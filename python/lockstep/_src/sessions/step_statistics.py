"""A hook that measures and logs the duration of steps."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.engine import arguments, progress

_tf1 = tf.compat.v1


class StepStatHook(tf.compat.v1.train.SessionRunHook):
    """A hook that logs this worker's seconds per step, and its samples (or other units) per second.

    A line has three values: the median of the seconds per step, the 10th percentile divided by the 90th (100 %: all
    steps take the same time), and the units per second. Follows HybridBackend's `StepStatHook`.

    Args:
      every_n_iter: the number of steps per line; each line covers only these steps. None: one line when training ends.
      count: the number of units in a step: a number, or a tensor that each step evaluates. None: units are not counted.
      unit: the name of a unit, in the singular.

    Raises:
      ValueError: `every_n_iter` is less than 1.
    """

    stops_alike = True

    def __init__(self, every_n_iter: int | None = None, count: Any = None, unit: str = "sample") -> None:
        arguments.integer("StepStatHook", "every_n_iter", every_n_iter, 1)
        self._every_n_iter = every_n_iter
        self._count = count
        self._unit = unit
        self._is_fetched = isinstance(count, (tf.Tensor, tf.Variable))

    def begin(self) -> None:
        self._durations: list[float] = []
        self._counted = 0.0

    def before_run(self, run_context: Any) -> Any:
        del run_context
        self._started = time.perf_counter()
        return _tf1.train.SessionRunArgs(self._count) if self._is_fetched else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        self._durations.append(time.perf_counter() - self._started)
        if self._count is not None:
            self._counted += float(np.sum(run_values.results if self._is_fetched else self._count))
        if self._every_n_iter is not None and len(self._durations) >= self._every_n_iter:
            self._log()

    def end(self, session: Any) -> None:
        del session
        if self._durations:
            self._log()

    def _log(self) -> None:
        low, median, high = np.percentile(self._durations, [10, 50, 90])
        text = f"secs/step: {median:.5f} ({100 * low / high:.2f}%)"
        if self._count is not None:
            text += f", {self._unit}s/sec: {self._counted / sum(self._durations):.2f}"
        progress.info("%s", text)
        self._durations, self._counted = [], 0.0
