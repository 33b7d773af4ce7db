"""`sok.incremental_model_dump`: the keys of dynamic tables that changed since a time, with their rows."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.compat.sok import rows, together

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_SECOND = datetime.timedelta(seconds=1)


def incremental_model_dump(
    sok_vars: Any, time_threshold: Any, sess: Any = None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the keys that training looked up or updated since a time; see the function of this name in SOK.

    All ranks must call this with the same arguments. Tables note times in whole seconds, so the threshold is rounded
    down: keys that changed earlier in its second are included.

    Args:
      sok_vars: a dynamic variable with the backend "hybrid", or a list or tuple of V variables.
      time_threshold: a `datetime.datetime`, or a list or tuple of 1 or V. A time without a zone is local time.
      sess: the session; a program in graph mode needs one. The first call for a variable adds operations to the
        session's graph, later calls add none. So call this once before the graph is finalized, as a
        `tf.compat.v1.train.MonitoredSession` does; a `tf.compat.v1.Session` with initialized variables serves.

    Returns:
      (keys, values): V arrays [N] and V arrays [N, D], the same on all ranks, in the order of ranks.

    Raises:
      TypeError: a variable has another type or backend, or a threshold is no `datetime.datetime`.
      ValueError: the number of thresholds fits neither, a program in graph mode gave no session, or ranks gave
        different numbers of variables.
      RuntimeError: the session's graph is finalized, and this was not called for the variable before.
    """
    attempt = together.Attempt("sok.incremental_model_dump")
    variables, seconds = attempt.on_all(_checked, sok_vars, time_threshold, sess)
    together.check_same("sok_vars: number of variables", len(variables))
    all_keys, all_values = [], []
    for variable, since in zip(variables, seconds, strict=True):
        keys, values = attempt.on_all(rows.changed_since, variable, since, sess)
        all_keys.append(together.gather_arrays(keys))
        all_values.append(together.gather_arrays(values))
    return all_keys, all_values


def _checked(sok_vars: Any, time_threshold: Any, sess: Any) -> tuple[list[Any], list[int]]:
    """Returns the variables and the seconds of each one's threshold, after checks of this rank's arguments."""
    variables = list(sok_vars) if isinstance(sok_vars, (list, tuple)) else [sok_vars]
    times = list(time_threshold) if isinstance(time_threshold, (list, tuple)) else [time_threshold]
    for i, variable in enumerate(variables):
        backend = getattr(variable, "backend_type", None)
        if backend != "hybrid":
            got = f"{variable!r:.200}" if backend is None else f"one with var_type={backend!r}"
            raise TypeError(f"sok_vars[{i}]: got {got}, wanted a sok.DynamicVariable with var_type='hybrid'")
    if len(times) not in (1, len(variables)):
        wanted = "1" if len(variables) == 1 else f"1 or {len(variables)}, one for each variable"
        raise ValueError(f"time_threshold: got {len(times)} times, wanted {wanted}")
    seconds = [_seconds(i, time) for i, time in enumerate(times)]
    if sess is None and not tf.executing_eagerly():
        raise ValueError("sess: got None in graph mode, wanted the session that holds the variables")
    return variables, seconds * len(variables) if len(seconds) == 1 else seconds


def _seconds(i: int, time: Any) -> int:
    """Returns the whole seconds from the epoch to a time, which is local if it has no zone."""
    if not isinstance(time, datetime.datetime):
        raise TypeError(f"time_threshold[{i}]: got {time!r:.200}, wanted a datetime.datetime")
    return (time.astimezone(datetime.timezone.utc) - _EPOCH) // _SECOND
