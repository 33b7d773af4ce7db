"""The end of a worker's program: what launcher and other workers hear of it, and that it comes soon after an error.

A worker leaves its job when its program ends. Others that wait for it then hear whether it has finished or failed; its
launcher hears of the error (`last_words`).

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
from typing import Any, NoReturn

# For what the interpreter does behind the exit handlers.
_TAKING_APART_S = 1.0
_MOST_CHARACTERS = 300

_error: BaseException | None = None  # with which the program ends
_code: Any = None  # what it gave to sys.exit
_former_hook: Callable[..., Any] | None = None
_former_exit: Callable[..., Any] | None = None
_watcher = 0  # the process that watches
_optimizer: weakref.ref[Any] | None = None  # the newest that counts steps
_step: int | None = None  # that a session has ended with


def watch() -> None:
    """Notices the end of this process's program, from now on. Any number of calls are one."""
    global _former_hook, _former_exit, _watcher
    if _watcher == os.getpid():
        return
    _watcher = os.getpid()
    if _former_hook is None:  # Forks have both already.
        _former_hook, sys.excepthook = sys.excepthook, _show
        _former_exit, sys.exit = sys.exit, _exit
    from lockstep._src.engine import last_words

    last_words.watch()


def ends_with(error: BaseException) -> None:
    """Says that the program ends with an error, which is about to be shown; or with SystemExit, which is not.

    For who calls a function as the interpreter would call a program.
    """
    global _error, _code
    if isinstance(error, SystemExit):
        _code = error.code
    else:
        _error = error


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
    """Returns a sentence of how the program ends, for others that wait for this worker meanwhile. It has ended."""
    if _error is None and _code:
        from lockstep._src.engine import last_words

        last_words.tell_code()
        return f"its program ended with sys.exit({_code!r:.{_MOST_CHARACTERS}}){_steps()}"
    if _error is None:
        return (
            f"it finished its program{_steps()} while others go on. The workers make unequal numbers of steps: let "
            "their data end together, as iterators made inside of scope() do, or give all of them as many batches "
            "(docs/input.md)"
        )
    text = f"{type(_error).__name__}: {_error}".splitlines()[0]
    return f"its program ended with {text[:_MOST_CHARACTERS]}"


def _exit(code: Any = None, /) -> NoReturn:
    # The interpreter tells nobody of it: no hook is called, and exit handlers do not see the code.
    global _code
    if _watcher == os.getpid() and threading.current_thread() is threading.main_thread():
        _code = code
    _former_exit(code)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Shows an error as before, or has the launcher show it; where it ends the program, ends process and program."""
    if _watcher != os.getpid() or not (error is _error or _is_last(error)):
        _former_hook(kind, error, trace)
        return
    from lockstep._src.engine import last_words, library

    ends_with(error)
    if not last_words.tell(error):
        _former_hook(kind, error, trace)
    if sys._getframe().f_back is not None:  # Who has called this is not done.
        return
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or nobody reads it
            stream.flush()
    library.end_within(_TAKING_APART_S, -signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)


def _is_last(error: BaseException) -> bool:
    """Whether an error that is shown ends the program: the interpreter shows it, and the program's module is left.

    A program may call the hook as well, to show an error and go on. The program's own hook may have called ours.
    """
    if sys.flags.interactive or hasattr(sys, "ps1") or threading.current_thread() is not threading.main_thread():
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return getattr(sys, "last_value", None) is error and frame.f_code.co_name != "<module>"
