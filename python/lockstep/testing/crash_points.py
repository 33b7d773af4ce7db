"""A test's own process is killed at a named point of the engine's code (core/base/crash_point.h)."""

from __future__ import annotations

from lockstep._src.engine import library


def crash_at(point: str, passes: int = 1) -> None:
    """Kills this process, as `kill -9` does, when it passes a point for the `passes`-th time from now on.

    Args:
      point: the name of the point. A name that no point has is never passed.
      passes: 1 or more.

    Raises:
      tf.errors.InvalidArgumentError: `passes` is less than 1.
    """
    library._check(library.capi.lockstep_crash_at(point.encode(), passes))
