"""The end of a worker's program: what the other workers hear of it, and that it comes soon after an error.

A worker leaves its job when its program ends. Others that wait for it then hear whether it has finished or failed.

After an error that nobody catches the interpreter takes itself and TensorFlow apart, for seconds where others keep the
machine's cores busy; only then the launcher sees that the worker has failed. So a worker of a job gives that a second.
Threads and exit handlers of the program are waited for before, as the interpreter does itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

# For what the interpreter does behind the exit handlers.
_TAKING_APART_S = 1.0
_MOST_CHARACTERS = 300

_error: BaseException | None = None
_former: Callable[..., Any] | None = None
_watcher = 0  # the process that watches
_optimizer: weakref.ref[Any] | None = None  # the newest that counts steps
_step: int | None = None  # that a session has ended with


def watch() -> None:
    """Notices the end of this process's program by an error, from now on. Any number of calls are one."""
    global _former, _watcher
    if _watcher == os.getpid():
        return
    _watcher = os.getpid()
    if _former is None:
        _former, sys.excepthook = sys.excepthook, _end


def counts_steps(optimizer: Any) -> None:
    """Names an optimizer of Keras whose `iterations` are the steps of this program. It is not kept alive."""
    global _optimizer
    _optimizer = weakref.ref(optimizer)


def ended_with(step: int) -> None:
    """Says with which global step a session has ended."""
    global _step
    _step = step


def _steps() -> str:
    """Returns " at step 30", or nothing where neither a session nor an optimizer has counted."""
    step = _step
    with contextlib.suppress(Exception):  # TensorFlow may be gone by now; the farewell is not to fail.
        if step is None and _optimizer is not None and (optimizer := _optimizer()) is not None:
            step = int(optimizer.iterations.numpy())
    return "" if step is None else f" at step {step}"


def farewell() -> str:
    """Returns a sentence of how the program ends, for others that wait for this worker meanwhile."""
    if _error is None:
        return (
            f"it finished its program{_steps()} while others go on. The workers make unequal numbers of steps: let "
            "their data end together, as iterators made inside of scope() do, or give all of them as many batches "
            "(docs/input.md)"
        )
    text = f"{type(_error).__name__}: {_error}".splitlines()[0]
    return f"its program ended with {text[:_MOST_CHARACTERS]}"


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Shows an error as before; where it ends the program, ends that as the interpreter does, and then the process."""
    global _error
    _former(kind, error, trace)
    # The interpreter itself calls it at the end of a program. A program may call it as well, to show an error.
    is_end = sys._getframe().f_back is None and threading.current_thread() is threading.main_thread()
    if not is_end or _watcher != os.getpid() or sys.flags.interactive or hasattr(sys, "ps1"):
        return
    _error = error
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or nobody reads it
            stream.flush()
    from lockstep._src import library

    library.end_within(_TAKING_APART_S, -signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)
