"""The report of a failed worker's program to its launcher.

A rank sends the traceback of the error that ends it to the launcher. The launcher shows each error once.

- Most errors of a job are consequences of another error: one rank fails and leaves, and the other ranks' collectives
  end with an error that names it. The launcher shows one line of such an error, and the traceback only if no other rank
  is the cause. A rank that the user has interrupted does the same.
- Any other error is the program's own. The launcher shows the traceback of the first rank, and one line for each other
  rank with the same error.

LOCKSTEP_TRACEBACKS=1 shows all tracebacks, with all frames.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

from lockstep._src.engine import tracebacks
from lockstep.launch.base import notes

SHOWS_ALL = "LOCKSTEP_TRACEBACKS"
_RANK = "LOCKSTEP_RANK"
# The errors that TensorFlow may raise if an interrupt ends an operation that waits.
_INTERRUPT_ERRORS = ("CancelledError", "UnavailableError", "InternalError")
# The errors of TensorFlow that its start-up lines may explain, for example errors of a GPU that cannot be used.
_DEVICE_ERRORS = ("InternalError", "UnknownError")
# The text with which pybind11 reports an interrupt that came while an error of TensorFlow was created.
_REPLACED = "REPLACED BY KeyboardInterrupt"
# The modules of TensorFlow's errors. C++ creates such an error; an interrupt there replaces it, and can crash
# TensorFlow.
_MODULES_OF_ERRORS = ("tensorflow.python.framework.errors_impl", "tensorflow.python.eager.core")
# The time after which an interrupt is repeated. The destructor, or the creation of the error, is over by then.
_REPEATED_AFTER_S = 0.02
_was_interrupted = False
# The attribute of an error that another rank has caused: the line that stands for its traceback.
_LINE = "_lockstep_of_peer"
_Error = TypeVar("_Error", bound=BaseException)


def watch() -> None:
    """Records from now on whether the user interrupts this process; does nothing without a launcher."""
    if notes.VARIABLE not in os.environ or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = functools.partial(_interrupt_again, sys.unraisablehook)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    # The exception that is raised here may be lost, or TensorFlow may turn it into another error.
    global _was_interrupted
    _was_interrupted = True
    if frame is not None and frame.f_globals.get("__name__") in _MODULES_OF_ERRORS:
        _repeat()
    else:
        signal.default_int_handler(signum, frame)


def _interrupt_again(show: Callable[[Any], None], lost: Any) -> None:
    """Repeats an interrupt that Python ignores because it came in a destructor; passes other errors to `show`."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        show(lost)
    elif threading.main_thread().is_alive():  # a program that already ends needs no second interrupt
        _repeat()


def _repeat() -> None:
    again = threading.Timer(_REPEATED_AFTER_S, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


def tell(error: BaseException) -> bool:
    """Reports the error that ends the program to the launcher; returns whether the launcher shows it."""
    if notes.VARIABLE not in os.environ:
        return False
    note: dict[str, Any] = {"is": "failed", **_reason(error)}
    if note["because"] == notes.ITSELF:
        note["same"] = tracebacks.identity(error, os.environ.get(_RANK, ""))
        note["start_up"] = _is_of_start_up(error)
    if os.environ.get(SHOWS_ALL) != "1":
        whole = tracebacks.text_of(error)
        if notes.say({**note, "trace": whole}):
            return True
        if note["because"] != notes.ITSELF and notes.say({**note, "trace": whole[-notes.MOST_TRACE_CHARACTERS :]}):
            return True
    notes.say(note)
    return False


def tell_code() -> None:
    """Reports to the launcher that the program itself ended with an exit code other than 0."""
    notes.say({"is": "failed", "because": notes.ITSELF})


def of_peer(error: _Error, line: str) -> _Error:
    """Marks an error as the consequence of another rank's error, which that rank reports.

    Args:
      error: this rank's error.
      line: what this rank reports in place of a traceback. It names the other rank.
    """
    setattr(error, _LINE, line)
    return error


def is_of_a_peer(error: BaseException) -> bool:
    """Returns whether an error is the consequence of another rank's end."""
    return _reason(error)["because"] == notes.PEER


def _reason(error: BaseException) -> dict[str, str]:
    """Returns why the program failed, and the line that stands for its traceback."""
    causes = list(_causes(error))
    of_tensorflow = _errors_of_tensorflow(*_INTERRUPT_ERRORS) if _was_interrupted else ()
    ends: tuple[type[BaseException], ...] = (KeyboardInterrupt, *of_tensorflow)
    if any(isinstance(cause, ends) or _REPLACED in str(cause) for cause in causes):
        return {"because": notes.INTERRUPT, "error": "interrupted"}
    for cause in causes:
        if line := getattr(cause, _LINE, ""):
            return {"because": notes.PEER, "error": line}
    library = sys.modules.get("lockstep._src.engine.library")
    if library is not None:  # without the library, the program has joined no job
        for cause in causes:
            if _is_of_engine(cause) and (lost := library.lost_peer(str(cause))):
                return {"because": notes.PEER, "error": lost}
    return {"because": notes.ITSELF}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes.

    An error of the program's own may have a context (`__context__`), which is not its cause: for example, saving may
    fail after Ctrl-C. An error of the engine may follow another one, as when a session closes.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (cause.__context__ if _is_of_engine(cause) else None)


def _is_of_engine(error: BaseException) -> bool:
    """Returns whether an error is one of TensorFlow's operations, or the one that Horovod raises for them."""
    return isinstance(error, _errors_of_tensorflow("OpError")) or type(error).__name__ == "HorovodInternalError"


def _is_of_start_up(error: BaseException) -> bool:
    """Returns whether TensorFlow's start-up lines may explain an error: something was not loaded, or a device fails."""
    kinds: tuple[type[BaseException], ...] = (ImportError, *_errors_of_tensorflow(*_DEVICE_ERRORS))
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _errors_of_tensorflow(*names: str) -> tuple[type[BaseException], ...]:
    """Returns classes of `tf.errors`; none of them if the program has not imported TensorFlow, or not wholly."""
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    return tuple(getattr(errors, name) for name in names) if errors is not None else ()
