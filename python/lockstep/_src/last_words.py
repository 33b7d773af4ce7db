"""The end of a worker's program, as its launcher is told of it.

Most errors of a job are echoes: one rank fails, leaves, and the others' collectives end with an error that names it.
A rank whose error is an echo sends its traceback to the launcher, which shows it where no other rank is the cause, and
one line of it otherwise. So does a rank that the user has interrupted. LOCKSTEP_TRACEBACKS=1 shows all tracebacks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from types import FrameType, TracebackType
from typing import Any

from lockstep._src import library
from lockstep.launch import notes

SHOWS_ALL = "LOCKSTEP_TRACEBACKS"
_attached_pid = 0
_was_interrupted = False


def attach() -> None:
    """Has this process tell its launcher how its program ends; nothing without a launcher, or the second time."""
    global _attached_pid
    if notes.VARIABLE not in os.environ or _attached_pid == os.getpid():
        return
    if not _attached_pid:  # Forks have the hook already.
        former = sys.excepthook
        sys.excepthook = lambda kind, error, trace: _tell(former, kind, error, trace)
    _attached_pid = os.getpid()
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    # What is raised here may be lost, or come out of TensorFlow as another error.
    global _was_interrupted
    _was_interrupted = True
    signal.default_int_handler(signum, frame)


def _tell(former: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if os.getpid() != _attached_pid:
        former(kind, error, trace)
        return
    note = {"is": "failed", **_reason(error)}
    if note["because"] != notes.ITSELF and os.environ.get(SHOWS_ALL) != "1":
        whole = "".join(traceback.format_exception(kind, error, trace))
        if notes.say({**note, "trace": whole[-notes.MOST_TRACE_CHARACTERS :]}):
            return
    notes.say(note)
    former(kind, error, trace)


def _reason(error: BaseException) -> dict[str, str]:
    """Why the program failed, and the line that stands for its traceback."""
    if _was_interrupted or isinstance(error, KeyboardInterrupt):
        return {"because": notes.INTERRUPT, "error": "interrupted"}
    if lost := library.lost_peer():
        return {"because": notes.PEER, "error": lost}
    return {"because": notes.ITSELF}
