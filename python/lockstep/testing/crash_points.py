"""Kills a test's own process at a named point of the engine's work (core/base/crash_point.h)."""

from __future__ import annotations

from lockstep._src.engine import library


def crash_at(point: str, passes: int = 1) -> None:
    """Has this process killed, as by `kill -9`, at the `passes`-th passing of a point from now on.

    Args:
      point: its name; one that no point has is never passed.
      passes: 1 or more.

    Raises:
      tf.errors.InvalidArgumentError: `passes` is less than 1.
    """
    library._check(library.capi.lockstep_crash_at(point.encode(), passes))
