"""The end of a worker's program: its reports to the launcher and to other workers, and its duration after an error.

A worker leaves its job when its program ends. Other workers that wait for it then hear whether it has finished or
failed; its launcher hears of the error (`failure_report`).

After an uncaught error, the interpreter releases its own and TensorFlow's objects. This takes seconds if other
processes keep the cores busy, and the launcher sees the failure only afterwards. Therefore a worker of a job allows one
second for it. Before that, it waits for the program's threads and exit handlers, as the interpreter itself does.
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

from lockstep.launch.base import notes

# The time for the interpreter's work after the exit handlers.
_TEARDOWN_S = 1.0
_MOST_CHARACTERS = 300

# The beginning of the farewell of a worker whose program has failed.
FAILED = "its program ended with "

_error: BaseException | None = None  # the error that ends the program
_code: Any = None  # the argument of sys.exit
_former_hook: Callable[..., Any] = sys.excepthook
_former_exit: Callable[..., NoReturn] = sys.exit
_watcher = 0  # the process that watches
_has_joined = False  # whether this process has ever joined other workers
_optimizer: weakref.ref[Any] | None = None  # the newest optimizer that counts steps
_step: int | None = None  # the global step at which a session has ended


def watch() -> None:
    """Watches for the end of this process's program from now on. Further calls do nothing.

    Loads neither TensorFlow nor the op library: a program may fail before it needs them.
    """
    global _former_hook, _former_exit, _watcher
    if _watcher == os.getpid():
        return
    was_forked = _watcher != 0  # a fork has both already
    _watcher = os.getpid()
    if not was_forked:
        _former_hook, sys.excepthook = sys.excepthook, _show
        _former_exit, sys.exit = sys.exit, _exit
        atexit.register(_tell_code)
    from lockstep._src.engine import failure_report

    failure_report.watch()


def ends_with(error: BaseException) -> None:
    """Records that the program ends with an error that is shown next, or with SystemExit, which is not shown.

    For callers that run a function as the interpreter runs a program.
    """
    global _error, _code
    if isinstance(error, SystemExit):
        _code = error.code
    else:
        _error = error


def counts_steps(optimizer: Any) -> None:
    """Registers an optimizer of Keras whose `iterations` are the program's steps, without keeping it alive."""
    global _optimizer
    _optimizer = weakref.ref(optimizer)


def ended_with(step: int) -> None:
    """Records the global step at which a session has ended."""
    global _step
    _step = step


def _steps() -> str:
    """Returns " at step 30", for example; "" if neither a session nor an optimizer has counted steps."""
    step = _step
    with contextlib.suppress(Exception):  # TensorFlow may be gone by now, and this must not fail
        if step is None and _optimizer is not None and (optimizer := _optimizer()) is not None:
            step = int(optimizer.iterations.numpy())
    return "" if step is None else f" at step {step}"


def tell_joined() -> None:
    """Records that this process has joined other workers, and notifies the launcher."""
    global _has_joined
    _has_joined = True
    notes.say({"is": "joined"})


def has_joined() -> bool:
    """Returns whether this process has ever joined other workers."""
    return _has_joined


def tell_left() -> None:
    """Tells the launcher that this process leaves the others, and how often it has exchanged anything."""
    if notes.VARIABLE in os.environ:
        from lockstep._src.engine import library

        lanes = library.counters()["lanes"]
        notes.say({"is": "left", "collectives": sum(lane["collectives"] for lane in lanes)})


def farewell() -> str:
    """Returns a sentence about how the program ended, for other workers that wait for this one."""
    if _error is None and _code:
        _tell_code()
        return f"{FAILED}sys.exit({_code!r:.{_MOST_CHARACTERS}}){_steps()}"
    if _error is None:
        return (
            f"it finished its program{_steps()} while others continue. The workers make unequal numbers of steps: let "
            "their data end together, as iterators made inside scope() do, or give all of them as many batches "
            "(docs/input.md). Or only some ranks make a call that needs all ranks, such as predict() of a model with "
            "sharded tables"
        )
    text = f"{type(_error).__name__}: {_error}".splitlines()[0]
    return f"{FAILED}{text[:_MOST_CHARACTERS]}"


def _exit(code: Any = None, /) -> NoReturn:
    # The interpreter does not report it: no hook is called, and exit handlers do not see the code.
    global _code
    if _watcher == os.getpid() and threading.current_thread() is threading.main_thread():
        _code = code
    _former_exit(code)


def _tell_code() -> None:
    """Tells the launcher that the program itself has chosen to end with an exit code other than 0."""
    if _watcher == os.getpid() and _error is None and _code:
        from lockstep._src.engine import failure_report

        failure_report.tell_code()


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Shows an error, here or by the launcher; if the error ends the program, also ends the process."""
    if _watcher != os.getpid() or not (error is _error or _is_last(error)):
        _former_hook(kind, error, trace)
        return
    from lockstep._src.engine import failure_report, tracebacks

    ends_with(error)
    if not failure_report.tell(error):
        if os.environ.get(failure_report.SHOWS_ALL) != "1":
            tracebacks.hide_interception(error)
        _former_hook(kind, error, error.__traceback__)
        if hint := tracebacks.hint_for(error):
            print(hint, end="", file=sys.stderr)
    library = sys.modules.get("lockstep._src.engine.library")
    # Without the library there is nothing that takes long to release, and a caller of this hook has more to do.
    if library is None or sys._getframe().f_back is not None:
        return
    threading._shutdown()  # type: ignore[attr-defined]  # typeshed does not declare it
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the stream is missing, or its reader has ended
            stream.flush()
    library.end_within(_TEARDOWN_S, -signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)


def _is_last(error: BaseException) -> bool:
    """Returns whether an error ends the program: the interpreter shows it after the program's module was left.

    A program may also call the hook itself to show an error and continue. The program's own hook may have called ours.
    """
    if sys.flags.interactive or hasattr(sys, "ps1") or threading.current_thread() is not threading.main_thread():
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return getattr(sys, "last_value", None) is error and frame.f_code.co_name != "<module>"
