"""Worker processes of a test.

`run_workers` starts a program, `call_workers` a function, `run_module` a module as `python -m` does. Functions and
modules are started by a fork server that has imported TensorFlow once: a worker is there in milliseconds, not after the
seconds that the import takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pickle
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

# A worker that is told to go is killed after this time, in seconds.
_KILL_AFTER_S = 2.0
# Tests say how long workers may take on a machine that is theirs. One that has more to do gives them this many times as
# much, but no more than leaves pytest's own deadline of 600 s for those who only wait.
_BUSY, _MOST_S = 4, 540.0


class WorkerError(AssertionError):
    """A worker failed, or was not done in time. The message holds what every worker printed."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a worker ended.

    Attributes:
      rank: its rank.
      exit_code: of the process; negative: the signal that ended it. None: it was killed because the time was up.
      output: what it wrote to stdout and stderr.
      value: what its function returned; None for a program.
      error: the exception that its function raised, as text with its traceback; None where it raised none.
    """

    rank: int
    exit_code: int | None
    output: str
    value: Any = None
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself and well."""
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
      size: how many workers.
      command: the program and its arguments.
      timeout_s: seconds that they may take on a quiet machine; those that run after four times as many are killed.
      cwd: the folder in which they start.
      environment: variables on top of this process's.
      check: raise WorkerError if a worker fails. Without it the caller looks at the outcomes.

    Returns:
      What each worker printed, in the order of ranks; with `check=False` an Outcome for each.
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
      function: of a module that workers can import; with its arguments and its result fit for pickle.
      size: how many workers.
      *args: the function's arguments.
      timeout_s: seconds that they may take on a quiet machine; those that run after four times as many are killed.
      environment: variables on top of this process's; what is read when TensorFlow is imported comes too late.
      hosts: a letter for each worker, the name of the host that it takes itself to be on; empty: all are on one.
      check: raise WorkerError if a worker fails. Without it the caller looks at the outcomes.

    Returns:
      What the function returned on each worker, in the order of ranks; with `check=False` an Outcome for each.
    """
    variables = [{**each, **(environment or {})} for each in worker_variables(size, hosts)]
    outcomes = _forked(function, args, timeout_s, variables, fail_fast=check)
    if not check:
        return outcomes
    _check(outcomes, timeout_s)
    return [outcome.value for outcome in outcomes]


def run_module(size: int, module: str, *arguments: str, timeout_s: float) -> list[str]:
    """Runs a module as `python -m` does on `size` workers, with the variables that the launcher sets.

    Args:
      size: how many workers.
      module: one that workers can import, and that ends by coming to its end.
      *arguments: of the command line.
      timeout_s: seconds that they may take on a quiet machine; those that run after four times as many are killed.

    Returns:
      What each worker printed, in the order of ranks.
    """
    outcomes = _forked(_run_as_main, (module, arguments), timeout_s, worker_variables(size), fail_fast=True)
    _check(outcomes, timeout_s)
    return [outcome.output for outcome in outcomes]


def worker_variables(size: int, hosts: str = "") -> list[dict[str, str]]:
    """The launcher's variables for each worker of a new job of `size` on this host, or on `hosts` that this one is."""
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
    """Returns a port that nobody has, below those that Linux gives to connections and to whoever asks for any."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@functools.cache
def _fork_server() -> Any:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["numpy", "tensorflow", "lockstep._src.collectives.ordered"])
    return server


def _forked(
    function: Callable[..., Any],
    args: Sequence[Any],
    timeout_s: float,
    variables: Sequence[Mapping[str, str]],
    fail_fast: bool,
) -> list[Outcome]:
    """Calls a function on workers that the fork server starts, each with its `variables`."""
    server = _fork_server()
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
    """The life of a worker that calls a function."""
    log = os.open(f"{base}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    exit_code = 0
    try:
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
    os._exit(exit_code)  # no destructor of TensorFlow's after its threads


def _outcome(rank: int, exit_code: int | None, base: Path) -> Outcome:
    result = base.with_suffix(".result")
    value, error = pickle.loads(result.read_bytes()) if exit_code is not None and result.exists() else (None, None)
    return Outcome(rank, exit_code, _read(base.with_suffix(".log")), value, error)


def _deadline_s(timeout_s: float) -> float:
    """Seconds after which workers are killed that a test gives `timeout_s`."""
    return max(timeout_s, min(timeout_s * _BUSY, _MOST_S))


def _await(polls: Sequence[Callable[[], int | None]], timeout_s: float, fail_fast: bool) -> list[int | None]:
    """Each worker's exit code, None for one that runs when the time is up.

    With `fail_fast`, the others have few seconds left once one has failed.
    """
    end = time.monotonic() + _deadline_s(timeout_s)
    failed = False
    while True:
        codes = [poll() for poll in polls]
        if all(code is not None for code in codes):
            return codes
        if fail_fast and not failed and any(codes):
            failed = True
            end = min(end, time.monotonic() + 10 * _BUSY)
        if time.monotonic() > end:
            return codes
        time.sleep(0.01)


def _end(processes: Sequence[Any]) -> None:
    """Ends what still runs, by pid."""
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
    raise WorkerError("\n".join(_describe(outcome, timeout_s) for outcome in outcomes))


def _describe(outcome: Outcome, timeout_s: float) -> str:
    if outcome.exit_code is None:
        how = f"was still running after {_deadline_s(timeout_s):g} s, or after another had failed, and was killed"
    elif outcome.exit_code < 0:
        how = f"was ended by {signal.Signals(-outcome.exit_code).name}"
    else:
        how = "raised" if outcome.error else f"ended with exit code {outcome.exit_code}"
    return f"--- worker {outcome.rank} {how}\n{outcome.output}{outcome.error or ''}"
