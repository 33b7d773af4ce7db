"""`call_in`: functions on workers that are fresh interpreters, pickled by reference from modules made here."""

import contextlib
import functools
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.cli.call import call_in
from lockstep.launch.cli.job_factory import CommandJobs
from lockstep.launch.placement import plan
from lockstep.testing.launching import wait_for

# No TensorFlow in it. The deadline raises in `call`, which then ends its workers.
pytestmark = [pytest.mark.newest_only, pytest.mark.timeout(240)]

FUNCTIONS = """
import os, signal, sys, time

def rank():
  return int(os.environ["LOCKSTEP_RANK"])

def place(*names, text=""):
  print(text)
  return rank(), os.getpid(), [os.environ[name] for name in names]

def large(size):
  return bytes([rank()]) * size

def on_rank_1(what):
  if rank() == 0: time.sleep(600)
  exec(what, globals())

def lock():
  import threading
  return threading.Lock()

def leave():
  if rank() == 1: sys.exit(0)

def fails_at_first():
  attempt = os.environ["LOCKSTEP_RESTART"]
  if attempt == "0" and rank() == 1: raise ValueError("not yet")
  if attempt == "0": return "of the first attempt"
  return attempt
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Yields a module of functions that is only on this process's module path."""
    name = f"functions_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__(name)
    del sys.modules[name]


@pytest.fixture
def run(tmp_path):
    """Yields a function that calls another on two workers, whose output goes to tmp_path / "shown"."""
    with open(tmp_path / "shown", "wb") as file:
        console = Console(file.fileno(), file.fileno())

        def run_it(function, *arguments, workers=2, folder=None, **options):
            variables = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
            make_job = CommandJobs(
                lambda variables: plan.environments(workers, variables, console, assigns_gpus=False),
                None,
                variables,
                console,
                folder=folder and str(folder),
                restarts=options.get("restarts", 0),
            )
            bound = functools.partial(function, *arguments)
            return list(call_in(bound, pickle.dumps, make_job, console, **options).values())

        yield run_it


def test_results_come_in_the_order_of_ranks(run, functions):
    (rank0, pid0, (size0,)), (rank1, pid1, (size1,)) = run(functions.place, "LOCKSTEP_WORLD_SIZE")
    assert (rank0, rank1, size0, size1) == (0, 1, "2", "2")
    assert len({pid0, pid1, os.getpid()}) == 3
    large = run(functions.large, 3 << 20)
    assert large == [bytes(3 << 20), b"\1" * (3 << 20)]


def test_a_single_worker_is_a_process_as_well(run, functions):
    ((rank, pid, names),) = run(functions.place, workers=1)
    assert (rank, pid != os.getpid(), names) == (0, True, [])


def test_output_is_shown_with_the_rank_and_kept(run, functions, tmp_path):
    run(functools.partial(functions.place, text="hello"), folder=tmp_path / "kept")
    assert sorted((tmp_path / "shown").read_text().splitlines()) == ["[0] hello", "[1] hello"]
    assert (tmp_path / "kept" / "rank.1" / "stdout").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise ValueError('this is why')", "rank 1 failed with exit code 1: ValueError: this is why"),
        ("sys.exit(37)", "rank 1 failed with exit code 37"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by SIGKILL"),
    ],
)
def test_a_failure_ends_the_others_and_names_the_rank(run, functions, tmp_path, what, message):
    with pytest.raises(RuntimeError) as failure:
        run(functions.on_rank_1, what)
    assert str(failure.value) == message
    if "ValueError" in what:
        assert "[1] Traceback (most recent call last):" in (tmp_path / "shown").read_text().splitlines()


def test_a_result_that_cannot_be_pickled_is_a_failure(run, functions):
    with pytest.raises(RuntimeError, match="rank . failed with exit code 1: TypeError: cannot pickle '_thread.lock'"):
        run(functions.lock)


def test_a_worker_that_leaves_without_a_result_is_named(run, functions):
    with pytest.raises(RuntimeError, match="rank 1 exited with code 0 before its function returned"):
        run(functions.leave)


def test_nothing_is_started_where_the_function_cannot_be_pickled(run):
    with pytest.raises((AttributeError, pickle.PicklingError)):
        run(lambda: None)


def test_another_interpreter_can_be_asked_for(run, functions, tmp_path):
    with pytest.raises(LaunchError, match="cannot run '/nowhere/python'"):
        run(functions.place, executable="/nowhere/python")
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nCALLED_BY=mine exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    assert run(functions.place, "CALLED_BY", workers=1, executable=str(interpreter))[0][2] == ["mine"]


def test_another_thread_than_the_main_one_is_refused(run, functions):
    refused = []

    def work():
        try:
            run(functions.place)
        except LaunchError as error:
            refused.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert refused == ["run must be called in the main thread, which receives the signals"]


def test_a_job_that_begins_anew_brings_the_results_of_its_last_attempt(run, functions, tmp_path):
    assert run(functions.fails_at_first, folder=tmp_path / "logs", restarts=2) == ["1", "1"]
    # The output of the first attempt is kept.
    assert "not yet" in (tmp_path / "logs" / "rank.1" / "stderr").read_text()


def _environments(launcher: int) -> bytes:
    """Returns the environments of a launcher's workers."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    found = b""
    for child in children:
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{child}/environ").read_bytes()
    return found


def test_no_file_is_left_of_a_launcher_that_is_killed(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = (
        "import functools, pickle, time\n"
        "from lockstep.launch.frontends.horovod_request import Request\n"
        "from lockstep.launch.frontends.horovodrun import run_function\n"
        "run_function(functools.partial(time.sleep, 600), pickle.dumps, Request(num_proc=2))\n"
    )
    started = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(temporary)})
    (folder,) = wait_for(lambda: [path.parent for path in temporary.glob("*/function")], "the folder")
    # The guard knows the folder before the first worker starts.
    wait_for(lambda: str(folder).encode() in _environments(started.pid), "a worker")
    started.kill()
    started.wait(120)
    wait_for(lambda: not list(temporary.iterdir()), "the guard")


def test_no_file_is_left(functions, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = (
        "import os, pickle\n"
        "from lockstep.launch.frontends.horovod_request import Request\n"
        "from lockstep.launch.frontends.horovodrun import run_function\n"
        "print(run_function(os.getpid, pickle.dumps, Request(num_proc=1)) != [os.getpid()])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.stdout, list(temporary.iterdir())) == ("True\n", [])
