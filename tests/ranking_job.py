"""Runs the programs of examples/ranking as their users do, each with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ranking"
_ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


def run_script(name: str, *arguments: object, cwd: Path, timeout_s: float = 120) -> str:
    """Runs a single process of the example. Returns its stdout; if it fails, raises with its stderr."""
    command = [sys.executable, str(EXAMPLE / name), *map(str, arguments)]
    process = subprocess.run(command, cwd=cwd, env=_ENVIRONMENT, capture_output=True, text=True, timeout=timeout_s)
    assert process.returncode == 0, f"{name} failed with exit code {process.returncode}:\n{process.stderr}"
    return process.stdout


def movielens() -> Path | None:
    """Returns the folder of MovieLens 100K, from the variable LOCKSTEP_MOVIELENS or beside the clone, or None."""
    beside = EXAMPLE.parents[2] / "shared" / "data" / "ml-100k"
    folder = Path(os.environ.get("LOCKSTEP_MOVIELENS", beside))
    return folder if folder.is_dir() else None


def made_movielens(folder: Path, *flags: object) -> Path:
    """Returns MovieLens-shaped data, prepared below the folder."""
    return Path(run_script("data.py", "--make", "movielens", "--out", folder, *flags, cwd=folder).strip())


def train_command(workers: int, *arguments: object) -> list[str]:
    """Returns the command of the distributed job."""
    launcher = [sys.executable, "-m", "hybridbackend.run", "-n", str(workers)]
    return [*launcher, *worker_command(*arguments)]


def worker_command(*arguments: object) -> list[str]:
    """Returns the command of one worker of the job."""
    return [sys.executable, str(EXAMPLE / "train.py"), *map(str, arguments)]


@contextlib.contextmanager
def started(
    command: list[str], cwd: Path, log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """Yields a job in a process group of its own, and kills its remaining processes at the end of the block.

    `variables` are set in addition to this process's.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**_ENVIRONMENT, **(variables or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    children: list[int] = []
    try:
        yield process
    finally:
        if process.poll() is None:
            children = worker_pids(process.pid)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        for pid in (*children, *([process.pid] if process.poll() is None else [])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def run_job(workers: int, *arguments: object, cwd: Path, timeout_s: float = 180) -> tuple[dict, str]:
    """Runs train.py to its end; returns its report and its output.

    Args:
      workers: the number of workers.
      arguments: flags, without --run-dir.
      cwd: the working folder, into which it also writes.
      timeout_s: seconds after which it is killed.
    """
    run_dir, log = cwd / f"run-{workers}", cwd / f"run-{workers}.log"
    with started(train_command(workers, "--run-dir", run_dir, *arguments), cwd, log) as process:
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = f"none after {timeout_s:g} s"
    output = log.read_text(errors="replace")
    assert code == 0, f"exit code {code} of {workers} workers:\n{output}"
    return json.loads((run_dir / "report.json").read_text()), output


def worker_pids(launcher: int) -> list[int]:
    """Returns the workers' processes, in rank order."""
    ranks = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            ranks.update({int(v.partition(b"=")[2]): int(child) for v in variables if v.startswith(b"LOCKSTEP_RANK=")})
    return [pid for _, pid in sorted(ranks.items())]
