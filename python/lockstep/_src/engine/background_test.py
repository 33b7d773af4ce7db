"""Tests of background.py, with an engine in place of the library's whose work and barriers end as a test says."""

# Promise of this file (checkpoints.md): functions that rely on a save beside training wait until all workers have
# written.

import threading

import pytest
import tensorflow as tf

from lockstep._src.engine import background, library

_DEADLINE_S = 60


class _Engine:
    """An engine of two workers. The barriers fail, on this worker, if the other one has failed."""

    def __init__(self):
        self.work_ends = threading.Event()
        self.barriers = []  # the errors that this worker has passed on
        self.error_of_other = {}  # by the number of the barrier
        self._raises = None

    def begin(self):
        self.work_ends.clear()

    def barrier(self, engine, error):
        self.barriers.append(error)
        self._raises = self.error_of_other.get(len(self.barriers)) or error

    def has_ended(self, engine, wait_s):
        if not self.work_ends.wait(min(wait_s, 0.01)):
            return False
        raised, self._raises = self._raises, None
        if raised:
            raise tf.errors.CancelledError(None, None, raised)
        return True


@pytest.fixture(name="engine")
def fixture_engine(monkeypatch):
    engine = _Engine()
    monkeypatch.setattr(library, "engine_number", lambda: 1)
    monkeypatch.setattr(library, "barrier_in_background", engine.barrier)
    monkeypatch.setattr(library, "background_has_ended", engine.has_ended)
    monkeypatch.setattr(background, "_work", None)
    return engine


def _within_deadline(function):
    """Calls the function on a thread, and fails if it does not return; raises its error."""
    outcome = []

    def run():
        try:
            function()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_DEADLINE_S)
    assert not thread.is_alive(), "it does not end"
    if outcome[0] is not None:
        raise outcome[0]


def test_functions_are_called_in_order_after_all_workers_have_done_their_last_part(engine):
    calls = []
    background.begin("save", engine.begin, lambda: calls.append(("then", len(engine.barriers))))
    background.when_done(lambda: calls.append(("first", len(engine.barriers))))
    background.when_done(lambda: calls.append(("second", len(engine.barriers))))
    background.check()
    assert calls == []
    engine.work_ends.set()
    _within_deadline(background.finish)
    assert calls == [("then", 0), ("first", 1), ("second", 1)]
    assert engine.barriers == ["", ""]
    background.when_done(lambda: calls.append("at once"))
    assert calls[-1] == "at once"


def test_a_save_that_another_worker_failed_is_not_reported(engine):
    reports = []
    engine.error_of_other[1] = "rank 1: save: the disk is full"
    background.begin("save", engine.begin, lambda: None)
    background.when_done(lambda: reports.append("early"))
    engine.work_ends.set()
    background._work.thread.join(_DEADLINE_S)
    background.when_done(lambda: reports.append("late"))
    with pytest.raises(tf.errors.CancelledError, match="the disk is full"):
        _within_deadline(background.check)
    assert reports == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_function_that_comes_during_the_last_meeting_waits_for_it(engine, monkeypatch, fails):
    reports, meets = [], threading.Event()

    def barrier(number, error):
        engine.barrier(number, error)
        if len(engine.barriers) == 2:
            engine.work_ends.clear()
            meets.set()

    monkeypatch.setattr(library, "barrier_in_background", barrier)
    if fails:
        engine.error_of_other[2] = "rank 1: save: no chain"
    background.begin("save", engine.begin, lambda: None)
    background.when_done(lambda: reports.append("early"))
    engine.work_ends.set()
    assert meets.wait(_DEADLINE_S)
    background.when_done(lambda: reports.append("late"))
    assert reports == ["early"]
    engine.work_ends.set()
    if fails:
        with pytest.raises(tf.errors.CancelledError, match="no chain"):
            _within_deadline(background.finish)
    else:
        _within_deadline(background.finish)
    assert reports == (["early"] if fails else ["early", "late"])


def test_an_error_of_a_function_reaches_the_other_workers(engine):
    def fail():
        raise OSError("no chain")

    background.begin("save", engine.begin, lambda: None)
    background.when_done(fail)
    engine.work_ends.set()
    with pytest.raises(OSError, match="no chain"):
        _within_deadline(background.finish)
    assert [bool(error) for error in engine.barriers] == [False, True]
    assert "no chain" in engine.barriers[1]


def test_without_a_thread_nothing_begins_and_a_later_work_does(engine, monkeypatch):
    begun = []

    class NoThread(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(background.threading, "Thread", NoThread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            background.begin("save", lambda: begun.append(1), lambda: None)
    assert begun == []
    engine.work_ends.set()
    _within_deadline(lambda: background.begin("save", lambda: begun.append(2), lambda: None))
    _within_deadline(background.finish)
    assert begun == [2]


def test_a_work_that_does_not_begin_raises_and_leaves_nothing(engine):
    def start():
        raise tf.errors.InvalidArgumentError(None, None, "no such variable")

    reports = []
    engine.work_ends.set()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such variable"):
        _within_deadline(lambda: background.begin("save", start, lambda: reports.append("then")))
    assert background._work is None
    assert reports == engine.barriers == []


def test_checks_beside_ending_works_do_not_fail(engine):
    errors = []
    ends = threading.Event()

    def check():
        try:
            while not ends.wait(0.0002):
                background.check()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=check, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    engine.work_ends.set()
    for _ in range(20):
        background.begin("save", lambda: None, lambda: None)
        _within_deadline(background.finish)
    ends.set()
    for thread in threads:
        thread.join(_DEADLINE_S)
    assert errors == []
