"""Crash points for tests: a test kills its own process at a named point of the engine (core/base/crash_point.h)."""

from __future__ import annotations

from lockstep._src.engine import library


def crash_at(point: str, passes: int = 1) -> None:
    """Makes this process die, as by `kill -9`, when it passes a point for the `passes`-th time from now.

    Args:
      point: the point's name. An unknown name has no effect.
      passes: 1 or more.

    Raises:
      tf.errors.InvalidArgumentError: `passes` is less than 1.
    """
    library.check(library.capi.lockstep_crash_at(point.encode(), passes))
