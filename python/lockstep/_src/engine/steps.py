"""Marks the ends of training steps, for the counters and the timeline. Each step is marked once."""

from __future__ import annotations

import weakref
from typing import Any

from lockstep._src.engine import library

_marked = 0
_last_run: weakref.ref[Any] | None = None


def end_step() -> None:
    """Marks the end of a training step of this worker.

    Sessions and `fit` inside a scope do this themselves, as the hook and the callback of `lockstep` also do. Training
    loops of your own call it after each step. `lockstep.stats()` counts the steps. The timeline shows each as the time
    since the end of the step before.
    """
    global _marked
    _marked += 1
    library.end_step()


def marked() -> int:
    """Returns how many steps this process has marked."""
    return _marked


def end_run(run_context: Any) -> None:
    """Marks the end of a session's run. Several hooks of a session may do so for the same run: it counts once.

    Args:
      run_context: the run's `SessionRunContext`, which all hooks get.
    """
    global _last_run
    if _last_run is not None and _last_run() is run_context:
        return
    _last_run = weakref.ref(run_context)
    end_step()


class Batches:
    """Counts the batches of a Keras pass, which calls callbacks only with the last batch of each execution."""

    def __init__(self) -> None:
        self._last = -1

    def since_last(self, batch: int) -> int:
        """Returns how many batches have ended since the last call; `batch` is the last one's index in its epoch."""
        count = batch - self._last if batch > self._last else batch + 1
        self._last = batch
        return count
