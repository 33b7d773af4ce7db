"""Work beside the steps of training: a checkpoint that is written while training continues.

The engine does the work on a lane of its own (core/comm/job/background_lane.h). A thread of this process waits for its
end, and then does what remains in Python. There is one such work at a time; the next one waits for it, and so does the
end of the program. An error of the work is raised by the next call of `check` or `finish`.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable

import tensorflow as tf

from lockstep._src.engine import at_exit, file_errors, library
from lockstep._src.engine.thread_value import ThreadValue

# The longest that the thread waits without a look at the other threads' signals.
_TURN_S = 0.2

# Whether saves of this thread may be in the background.
allowed = ThreadValue(False)


@dataclasses.dataclass
class _Work:
    what: str
    then: list[Callable[[], None]]
    thread: threading.Thread | None = None
    error: BaseException | None = None


_work: _Work | None = None
_lock = threading.Lock()  # guards _work and the lists of its functions


def begin(what: str, then: Callable[[], None]) -> None:
    """Watches the work that the engine has just begun; no other one may run.

    Args:
      what: a description of the failed work; the message of its error begins with it.
      then: called on a thread when the engine has done the work.
    """
    global _work
    work = _Work(what, [then])
    work.thread = threading.Thread(target=_watch, args=(work,), name="lockstep background work", daemon=True)
    with _lock:
        assert _work is None, "the work before has ended"
        _work = work
    at_exit.unregister(_finish_at_exit)
    at_exit.register(_finish_at_exit)  # last, so that it is called before the engine leaves the job
    work.thread.start()


def when_done(function: Callable[[], None]) -> None:
    """Calls a function when the present work has succeeded, on a thread; at once if there is none."""
    with _lock:
        if _work is not None and _work.thread.is_alive():
            _work.then.append(function)
            return
    function()


def check() -> None:
    """Raises the error of work that has failed; does not wait."""
    if _work is not None and not _work.thread.is_alive():
        finish()


def finish() -> None:
    """Waits for the end of the work, if there is any.

    Raises:
      tf.errors.OpError: the work has failed on some worker.
      OSError, tf.errors.OpError: its last part, in Python, has failed on this worker; the others get `CancelledError`.
    """
    global _work
    work = _work
    if work is None or work.thread is threading.current_thread():
        return
    work.thread.join()
    with _lock:
        _work = None
    if work.error is not None:
        with file_errors.raised_on_all(work.what):
            raise work.error


def _watch(work: _Work) -> None:
    try:
        _await_engine()
        text = ""
        try:
            while function := _next(work):
                function()
        except Exception as error:
            work.error, text = error, f"{work.what}: {file_errors.cause_of(error)}"
        # No rank takes the work for done if another one has failed at its last part.
        library.barrier_in_background(text)
        _await_engine()
    except BaseException as error:
        work.error = work.error or error


def _await_engine() -> None:
    while not library.background_has_ended(_TURN_S):
        pass


def _next(work: _Work) -> Callable[[], None] | None:
    with _lock:
        return work.then.pop(0) if work.then else None


def _finish_at_exit() -> None:
    """Waits for the work at the end of the process, until the user interrupts it.

    The thread has to end in any case: Python ends threads that still run while it ends itself, and TensorFlow's code in
    such a thread then crashes the process.
    """
    work = _work
    if work is None:
        return
    while work.thread.is_alive():
        try:
            work.thread.join()
        except KeyboardInterrupt:
            library.shutdown("it was interrupted")
    # The errors of a rank that leaves, or whose peers have left, are no news.
    if work.error is not None and not isinstance(work.error, (tf.errors.CancelledError, tf.errors.UnavailableError)):
        logging.getLogger("lockstep").error("%s: %s", work.what, file_errors.cause_of(work.error))
