"""Tests of the helpers that start workers."""

import os
import sys
import time
from pathlib import Path

import pytest

from lockstep.testing import WorkerError, call_workers, run_module, run_workers

pytestmark = [pytest.mark.workers, pytest.mark.newest_only]  # no TensorFlow in it

SHOW = [sys.executable, "-c", "import os; print(os.environ['LOCKSTEP_RANK'], os.environ['LOCKSTEP_WORLD_SIZE'])"]


def say(what):
    print("said", what)
    return os.environ["LOCKSTEP_RANK"], os.environ.get("EXTRA"), what


def environment_of_fork_server():
    return Path(f"/proc/{os.getppid()}/environ").read_text()


def fail_on_rank_1():
    if os.environ["LOCKSTEP_RANK"] == "1":
        raise KeyError("a word to find")


def die_on_rank_1():
    if os.environ["LOCKSTEP_RANK"] == "1":
        os._exit(3)


def hang(folder):
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def test_a_program_runs_on_every_worker_with_the_launchers_variables():
    assert run_workers(3, SHOW, timeout_s=30) == ["0 3\n", "1 3\n", "2 3\n"]


def test_a_module_runs_on_every_worker_as_a_program(tmp_path, monkeypatch):
    (tmp_path / "shows_its_place.py").write_text(
        "import os, sys\n"
        "where = __name__, sys.modules['__main__'].__file__ == __file__ == sys.argv[0]\n"
        "print(os.environ['LOCKSTEP_RANK'], sys.argv[1:], *where)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    printed = run_module(2, "shows_its_place", "a", "b", timeout_s=30)
    assert printed == [f"{rank} ['a', 'b'] __main__ True\n" for rank in range(2)]


def test_a_function_returns_its_value_from_every_worker():
    values = call_workers(say, 2, {"a": 1}, environment={"EXTRA": "more"})
    assert values == [("0", "more", {"a": 1}), ("1", "more", {"a": 1})]


def test_a_test_does_not_change_the_environment_in_which_tensorflow_is_imported():
    (environment,) = call_workers(environment_of_fork_server, 1)
    assert "PATH=" in environment
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in environment


def test_outcomes_hold_what_each_worker_printed():
    outcomes = call_workers(say, 2, "x", check=False)
    assert [(o.rank, o.exit_code, o.output, o.succeeded) for o in outcomes] == [
        (0, 0, "said x\n", True),
        (1, 0, "said x\n", True),
    ]


def test_an_exception_is_raised_with_its_traceback():
    with pytest.raises(WorkerError, match=r"worker 1 raised\n(.*\n)*KeyError: 'a word to find'"):
        call_workers(fail_on_rank_1, 2)


def test_a_death_is_reported_by_its_exit_code():
    with pytest.raises(WorkerError, match="worker 1 ended with exit code 3"):
        call_workers(die_on_rank_1, 2)
    with pytest.raises(WorkerError, match="worker 0 ended with exit code 3"):
        run_workers(1, [sys.executable, "-c", "import sys; sys.exit(3)"], timeout_s=30)


def test_workers_that_hang_are_killed_when_the_time_is_up(tmp_path):
    with pytest.raises(WorkerError, match="was still running after 4 s"):
        call_workers(hang, 2, tmp_path, timeout_s=1)
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)
