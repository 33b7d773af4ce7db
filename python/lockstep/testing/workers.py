"""Worker processes of a test.

`run_workers` starts a program, `call_workers` a function, and `run_module` a module like `python -m`. A fork server,
which has imported TensorFlow and Lockstep once (preloaded.py), starts functions and modules. A worker then starts in
milliseconds; the imports would take seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing.forkserver
import os
import pickle
import pkgutil
import random
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.launch.base.environment import replace_environment, replaced_environment

# The time in seconds between SIGTERM and SIGKILL for a worker.
_KILL_AFTER_S = 2.0
# The name of a variable with a function, "module:function", that each worker of a function calls first.
CALLED_FIRST = "LOCKSTEP_TEST_CALLED_FIRST"
# Tests give the time that workers may take on a quiet machine. On a busy machine, workers get this many times as much,
# but at most 540 s, because pytest ends a test after 600 s.
_BUSY_FACTOR, _MAX_TIMEOUT_S = 4, 540.0
# This process's environment before tests changed it.
_ENVIRONMENT = dict(os.environ)


class WorkerError(AssertionError):
    """A worker failed, or did not end in time. The message has the output of every worker."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a worker.

    Attributes:
      rank: the worker's rank.
      exit_code: the exit code of the process; a negative number is the signal that ended it. None: it was killed at the
        deadline.
      output: the text that it wrote to stdout and stderr.
      value: the result of its function; None for a program.
      error: the exception that its function raised, as text with its traceback; None if there was none.
    """

    rank: int
    exit_code: int | None
    output: str
    value: Any = None
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        """True if the worker ended by itself and without an error."""
        return self.exit_code == 0 and self.error is None


def run_workers(
    size: int,
    command: Sequence[str],
    *,
    timeout_s: float,
    cwd: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
) -> list[Any]:
    """Runs a program on `size` workers, with the variables that the launcher sets.

    Args:
      size: the number of workers.
      command: the program and its arguments.
      timeout_s: the seconds that workers may take on a quiet machine; after four times this time they are killed.
      cwd: the folder in which they start.
      environment: variables in addition to this process's.
      check: raises WorkerError if a worker fails. If false, the caller must check the outcomes.

    Returns:
      The output of each worker, in the order of ranks; with `check=False` an Outcome for each.

    Raises:
      WorkerError: a worker failed, or did not end in time, and `check` is true.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder, contextlib.ExitStack() as stack:
        logs = [Path(folder) / f"{rank}.log" for rank in range(size)]
        processes = []
        try:
            for log, variables in zip(logs, worker_variables(size), strict=True):
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=cwd,
                        env={**os.environ, **variables, **(environment or {})},
                        stdin=subprocess.DEVNULL,
                        stdout=stack.enter_context(log.open("wb")),
                        stderr=subprocess.STDOUT,
                    )
                )
            codes = _await([p.poll for p in processes], timeout_s, fail_fast=check)
        finally:
            _end(processes)
        outcomes = [Outcome(rank, codes[rank], _read(log)) for rank, log in enumerate(logs)]
    if not check:
        return outcomes
    _check(outcomes, timeout_s)
    return [outcome.output for outcome in outcomes]


def call_workers(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = 60,
    environment: Mapping[str, str] | None = None,
    hosts: str = "",
    check: bool = True,
) -> list[Any]:
    """Calls a function on `size` workers, with the variables that the launcher sets.

    Args:
      function: a function of a module that workers can import. Its arguments and its result must be picklable.
      size: the number of workers.
      *args: the function's arguments.
      timeout_s: the seconds that workers may take on a quiet machine; after four times this time they are killed.
      environment: variables in addition to this process's. Variables that TensorFlow reads at its import have no
        effect, because TensorFlow is already imported.
      hosts: one letter per worker, the name of the host on which it pretends to run; empty: all are on one host.
      check: raises WorkerError if a worker fails. If false, the caller must check the outcomes.

    Returns:
      The result of the function on each worker, in the order of ranks; with `check=False` an Outcome for each.

    Raises:
      WorkerError: a worker failed, or did not end in time, and `check` is true.
    """
    variables = [{**each, **(environment or {})} for each in worker_variables(size, hosts)]
    outcomes = _forked(function, args, timeout_s, variables, fail_fast=check)
    if not check:
        return outcomes
    _check(outcomes, timeout_s)
    return [outcome.value for outcome in outcomes]


def run_module(size: int, module: str, *arguments: str, timeout_s: float) -> list[str]:
    """Runs a module like `python -m` on `size` workers, with the variables that the launcher sets.

    Args:
      size: the number of workers.
      module: a module that workers can import, and that does not call sys.exit.
      *arguments: the command line.
      timeout_s: the seconds that workers may take on a quiet machine; after four times this time they are killed.

    Returns:
      The output of each worker, in the order of ranks.

    Raises:
      WorkerError: a worker failed, or did not end in time.
    """
    outcomes = _forked(_run_as_main, (module, arguments), timeout_s, worker_variables(size), fail_fast=True)
    _check(outcomes, timeout_s)
    return [outcome.output for outcome in outcomes]


def worker_variables(size: int, hosts: str = "") -> list[dict[str, str]]:
    """Returns the launcher's variables for each worker of a new job.

    All workers run on this host. If `hosts` is given, each pretends to run on the host of its letter.
    """
    if size == 1:
        return [{"LOCKSTEP_RANK": "0", "LOCKSTEP_WORLD_SIZE": "1", "TF_CONFIG": ""}]
    shared = {
        "LOCKSTEP_WORLD_SIZE": str(size),
        "LOCKSTEP_RENDEZVOUS": f"127.0.0.1:{_free_port()}",
        "LOCKSTEP_SECRET": secrets.token_hex(16),
        "TF_CONFIG": "",
    }
    names = hosts or "a" * size
    return [
        {
            **shared,
            "LOCKSTEP_RANK": str(rank),
            "LOCKSTEP_LOCAL_RANK": str(names[:rank].count(name)),
            "LOCKSTEP_LOCAL_WORLD_SIZE": str(names.count(name)),
            **({"LOCKSTEP_HOST": name} if hosts else {}),
        }
        for rank, name in enumerate(names)
    ]


def _free_port() -> int:
    """Returns a free port, below the ports that Linux itself assigns to connections and servers."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@functools.cache
def fork_server() -> Any:
    """Returns a context whose processes are forks of one that has imported TensorFlow and Lockstep.

    A process has only one fork server, which all tests share. TensorFlow reads variables during its import. So the fork
    server does not have the variables of the test that starts it, but those from before all tests.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["lockstep.testing.preloaded"])
    with replaced_environment(_ENVIRONMENT):
        multiprocessing.forkserver.ensure_running()
    return server


def _forked(
    function: Callable[..., Any],
    args: Sequence[Any],
    timeout_s: float,
    variables: Sequence[Mapping[str, str]],
    fail_fast: bool,
) -> list[Outcome]:
    """Calls a function on workers that the fork server starts, each with its own `variables`."""
    server = fork_server()
    with tempfile.TemporaryDirectory(prefix="lockstep_test_") as folder:
        bases = [Path(folder) / str(rank) for rank in range(len(variables))]
        processes = [
            server.Process(
                target=_work,
                args=(function, args, str(base), {**os.environ, **own}),
                name=f"rank {rank}",
            )
            for rank, (base, own) in enumerate(zip(bases, variables, strict=True))
        ]
        started: list[Any] = []
        try:
            for process in processes:
                process.start()
                started.append(process)
            codes = _await([functools.partial(getattr, p, "exitcode") for p in processes], timeout_s, fail_fast)
        finally:
            _end(started)
        return [_outcome(rank, codes[rank], base) for rank, base in enumerate(bases)]


def _run_as_main(module: str, arguments: Sequence[str]) -> None:
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _work(function: Callable[..., Any], args: Sequence[Any], base: str, environment: dict[str, str]) -> None:
    """Runs a worker that calls a function: sets it up, calls the function, writes the result, leaves the job."""
    log = os.open(f"{base}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    replace_environment(environment)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    exit_code = 0
    try:
        if first := os.environ.get(CALLED_FIRST):
            pkgutil.resolve_name(first)()
        result = pickle.dumps((function(*args), None))
    except BaseException:
        result = pickle.dumps((None, traceback.format_exc()))
        exit_code = 1
    Path(f"{base}.result").write_bytes(result)
    for module, leave in (
        ("lockstep._src.collectives.named_job", "stop"),
        ("lockstep._src.engine.context", "shutdown"),
    ):
        if module in sys.modules:
            getattr(sys.modules[module], leave)()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # skips TensorFlow's destructors, which may run after its threads have ended


def _outcome(rank: int, exit_code: int | None, base: Path) -> Outcome:
    result = base.with_suffix(".result")
    value, error = pickle.loads(result.read_bytes()) if exit_code is not None and result.exists() else (None, None)
    return Outcome(rank, exit_code, _read(base.with_suffix(".log")), value, error)


def _deadline_s(timeout_s: float) -> float:
    """Returns the seconds after which workers are killed, for the `timeout_s` that a test gives."""
    return max(timeout_s, min(timeout_s * _BUSY_FACTOR, _MAX_TIMEOUT_S))


def _await(polls: Sequence[Callable[[], int | None]], timeout_s: float, fail_fast: bool) -> list[int | None]:
    """Waits for the workers, and returns their exit codes; None for a worker that still runs at the deadline.

    With `fail_fast`, the other workers have only a few more seconds after one has failed.
    """
    end = time.monotonic() + _deadline_s(timeout_s)
    failed = False
    while True:
        codes = [poll() for poll in polls]
        if all(code is not None for code in codes):
            return codes
        if fail_fast and not failed and any(codes):
            failed = True
            end = min(end, time.monotonic() + 10 * _BUSY_FACTOR)
        if time.monotonic() > end:
            return codes
        time.sleep(0.01)


def _end(processes: Sequence[Any]) -> None:
    """Ends the processes that still run."""
    for process in processes:
        if _is_running(process):
            process.terminate()
    for process in processes:
        wait = process.wait if isinstance(process, subprocess.Popen) else process.join
        with contextlib.suppress(subprocess.TimeoutExpired):
            wait(_KILL_AFTER_S)
        if _is_running(process):
            process.kill()
            wait(None)


def _is_running(process: Any) -> bool:
    return process.poll() is None if isinstance(process, subprocess.Popen) else process.is_alive()


def _read(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def _check(outcomes: Sequence[Outcome], timeout_s: float) -> None:
    if all(outcome.succeeded for outcome in outcomes):
        return
    raise WorkerError("\n".join(describe(outcome, timeout_s) for outcome in outcomes))


def describe(outcome: Outcome, timeout_s: float) -> str:
    """Returns how a worker ended, and what it printed."""
    if outcome.exit_code is None:
        how = f"was still running after {_deadline_s(timeout_s):g} s, or after another had failed, and was killed"
    elif outcome.exit_code < 0:
        how = f"was ended by {signal.Signals(-outcome.exit_code).name}"
    else:
        how = "raised" if outcome.error else f"ended with exit code {outcome.exit_code}"
    return f"--- worker {outcome.rank} {how}\n{outcome.output}{outcome.error or ''}"
