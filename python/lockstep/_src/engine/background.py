"""Work beside the steps of training: a checkpoint that is written while training continues.

The engine does the work on a lane of its own (core/comm/job/background_lane.h). A thread of this process waits for its
end, and then does what remains in Python. There is one such work at a time; the next one and the
end of the job wait for it. An error of the work is raised by the next call of `check` or `finish`.

A work has these parts on each worker. The workers synchronize after each, and continue only if all have succeeded:

    the engine's work    it writes the checkpoint
    `then`               makes the result valid: the state file
    functions            of `when_done`, which rely on the result: a report, an entry in a chain of checkpoints

A function that comes during the last of these rendezvous waits for its end, because another worker's functions may have
failed. It is called afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable

import tensorflow as tf

from lockstep._src.engine import file_errors, library
from lockstep._src.engine.context import leave_through
from lockstep._src.engine.thread_value import ThreadValue

# The longest that the thread waits in the engine at a time.
_TURN_S = 0.2

# Whether saves of this thread may be in the background.
allowed = ThreadValue(False)


@dataclasses.dataclass
class _Work:
    what: str
    engine: int
    then: Callable[[], None]
    thread: threading.Thread = dataclasses.field(init=False)
    # Set when `start` has returned or failed.
    begun: threading.Event = dataclasses.field(default_factory=threading.Event)
    failed_to_begin: bool = False  # written before `begun` is set
    # None: all were called, or none will be.
    functions: list[Callable[[], None]] | None = dataclasses.field(default_factory=list)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=_watch, args=(self,), name="lockstep background work", daemon=True)


_work: _Work | None = None
_lock = threading.Lock()  # guards _work, and the functions and the error of works


def begin(what: str, start: Callable[[], None], then: Callable[[], None]) -> None:
    """Waits for the end of the work before, and begins another one.

    Args:
      what: a description of the failed work; the message of its error begins with it.
      start: makes the engine begin; returns at once.
      then: called on a thread when the engine has done the work.

    Raises:
      tf.errors.OpError, OSError: the errors of `finish`.
      RuntimeError: the system has no thread left; nothing has begun.
    """
    global _work
    work = _Work(what, library.engine_number(), then)
    while True:
        finish()
        with _lock:
            if _work is None:
                _work = work
                break
    try:
        work.thread.start()  # first: if the system has no thread left, nothing has begun
        start()
    except BaseException:
        # The engine may have begun in spite of it, if the user interrupts this thread: the other one waits for its end.
        work.failed_to_begin = True
        if work.thread.ident is None:
            with _lock:
                _work = None
        raise
    finally:
        work.begun.set()
        if work.failed_to_begin:
            _join(work)


def when_done(function: Callable[[], None]) -> None:
    """Calls a function on a thread when the present work has succeeded on all workers, at once if there is none.

    If the work fails on any worker, or has failed, the function is not called. An error of the function on the thread
    is an error of the work.
    """
    with _lock:
        if _work is not None:
            if _work.functions is not None:
                _work.functions.append(function)
                return
            if _work.error is not None:
                return
    function()


def check() -> None:
    """Raises the error of work that has failed; does not wait."""
    work = _work  # read once: another thread may end it meanwhile
    if work is not None and work.thread.ident is not None and not work.thread.is_alive():
        finish()


def finish() -> None:
    """Waits for the end of the work, if there is any.

    Raises:
      tf.errors.OpError: the work has failed on some worker, or this process has left the job.
      OSError, tf.errors.OpError: its last part, in Python, has failed on this worker; the others get `CancelledError`.
    """
    work = _awaited()
    if work is None:
        return
    _join(work)
    if work.error is not None:
        with file_errors.raised_on_all(work.what):
            raise work.error


def leave(end: Callable[[], None]) -> None:
    """Waits for the end of the work, then calls `end`, which leaves the engine's job.

    If the user interrupts the wait, or `end` has to end the work, it fails. The thread ends in any case: Python ends
    threads that still run while it ends itself, and TensorFlow's code in such a thread then crashes the process.
    """
    work = _awaited()
    try:
        if work is not None:
            _join(work)
    finally:
        end()
        while work is not None and work.thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                _join(work)
    # The errors of a rank that leaves, or whose peers have left, are expected.
    no_news = (tf.errors.CancelledError, tf.errors.UnavailableError)
    if work is not None and work.error is not None and not isinstance(work.error, no_news):
        logging.getLogger("lockstep").error("%s: %s", work.what, file_errors.cause_of(work.error))


leave_through(leave)


def _awaited() -> _Work | None:
    """Returns the present work; None if there is none, or on its own thread, which cannot wait for it."""
    work = _work
    return None if work is None or work.thread is threading.current_thread() else work


def _join(work: _Work) -> None:
    global _work
    if work.thread.ident is not None:  # else another thread begins it
        work.thread.join()
        with _lock:
            if _work is work:
                _work = None


def _watch(work: _Work) -> None:
    work.begun.wait()
    error: BaseException | None = None
    try:
        if work.failed_to_begin:
            with contextlib.suppress(tf.errors.OpError):
                _await_engine(work)
        else:
            _await_engine(work)
            _do_on_all(work, work.then)
            _do_on_all(work, lambda: _call_functions(work, is_last=False))
            _call_functions(work, is_last=True)
    except BaseException as raised:
        error = raised
    with _lock:
        work.error, work.functions = error, None


def _do_on_all(work: _Work, part: Callable[[], None]) -> None:
    """Does a part of the work, and waits until all workers have done theirs.

    Raises:
      Exception: the part's own error; the other workers get `tf.errors.CancelledError` with its text.
    """
    error: Exception | None = None
    try:
        part()
    except Exception as raised:
        error = raised
    library.barrier_in_background(work.engine, "" if error is None else f"{work.what}: {file_errors.cause_of(error)}")
    try:
        _await_engine(work)
    finally:
        if error is not None:
            raise error


def _call_functions(work: _Work, is_last: bool) -> None:
    while function := _next(work, is_last):
        function()


def _await_engine(work: _Work) -> None:
    while not library.background_has_ended(work.engine, _TURN_S):
        pass


def _next(work: _Work, is_last: bool) -> Callable[[], None] | None:
    """Returns the next function to call, or None. `is_last`: `when_done` then calls later functions at once."""
    with _lock:
        if work.functions:
            return work.functions.pop(0)
        if is_last:
            work.functions = None
        return None
