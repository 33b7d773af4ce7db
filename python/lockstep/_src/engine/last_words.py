"""The end of a worker's program, as its launcher is told of it.

Most errors of a job are echoes: one rank fails, leaves, and the others' collectives end with an error that names it.
A rank whose error is an echo sends its traceback to the launcher, which shows it where no other rank is the cause, and
one line of it otherwise. So does a rank that the user has interrupted. LOCKSTEP_TRACEBACKS=1 shows all tracebacks.
An error is the program's own, and shown whole, unless the error itself says that it is one of these.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

import tensorflow as tf

from lockstep._src.engine import library
from lockstep.launch.base import notes

SHOWS_ALL = "LOCKSTEP_TRACEBACKS"
# Errors of TensorFlow into which an interrupt turns where it ends what TensorFlow waits for.
_OF_INTERRUPTS = (tf.errors.CancelledError, tf.errors.UnavailableError, tf.errors.InternalError)
# How pybind11 says that an interrupt came while an error of TensorFlow's was made.
_REPLACED = "REPLACED BY KeyboardInterrupt"
_was_interrupted = False


def watch() -> None:
    """Notices from now on that the user interrupts this process; nothing without a launcher."""
    if notes.VARIABLE not in os.environ or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    # What is raised here may be lost, or come out of TensorFlow as another error.
    global _was_interrupted
    _was_interrupted = True
    signal.default_int_handler(signum, frame)


def tell(error: BaseException) -> bool:
    """Tells the launcher of the error with which the program ends; True: the launcher shows it, in one line."""
    if notes.VARIABLE not in os.environ:
        return False
    note = {"is": "failed", **_reason(error)}
    if note["because"] != notes.ITSELF and os.environ.get(SHOWS_ALL) != "1":
        whole = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if notes.say({**note, "trace": whole[-notes.MOST_TRACE_CHARACTERS :]}):
            return True
    notes.say(note)
    return False


def tell_code() -> None:
    """Tells the launcher that the program ends by itself with an exit code that is none of success."""
    notes.say({"is": "failed", "because": notes.ITSELF})


def _reason(error: BaseException) -> dict[str, str]:
    """Why the program failed, and the line that stands for its traceback."""
    causes = list(_causes(error))
    ends = (KeyboardInterrupt, *(_OF_INTERRUPTS if _was_interrupted else ()))
    if any(isinstance(cause, ends) or _REPLACED in str(cause) for cause in causes):
        return {"because": notes.INTERRUPT, "error": "interrupted"}
    for cause in causes:
        if _is_of_engine(cause) and (lost := library.lost_peer(str(cause))):
            return {"because": notes.PEER, "error": lost}
    return {"because": notes.ITSELF}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and those that it stands for.

    What the program was handling meanwhile (`__context__`) is no cause of an error of its own: a failure to save after
    Ctrl-C is one. An error of the engine may follow another one, as when a session closes.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (cause.__context__ if _is_of_engine(cause) else None)


def _is_of_engine(error: BaseException) -> bool:
    """Whether it is an error of TensorFlow's operations, or the one that Horovod has for them."""
    return isinstance(error, tf.errors.OpError) or type(error).__name__ == "HorovodInternalError"
