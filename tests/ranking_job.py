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
    """Runs a single process of the example; returns its stdout, raises with its stderr where it fails."""
    command = [sys.executable, str(EXAMPLE / name), *map(str, arguments)]
    process = subprocess.run(command, cwd=cwd, env=_ENVIRONMENT, capture_output=True, text=True, timeout=timeout_s)
    assert process.returncode == 0, f"{name} failed with exit code {process.returncode}:\n{process.stderr}"
    return process.stdout


def movielens() -> Path | None:
    """The folder of MovieLens 100K: that of the variable LOCKSTEP_MOVIELENS, or beside the clone; None without it."""
    beside = EXAMPLE.parents[2] / "shared" / "data" / "ml-100k"
    folder = Path(os.environ.get("LOCKSTEP_MOVIELENS", beside))
    return folder if folder.is_dir() else None


def made_movielens(folder: Path, *flags: object) -> Path:
    """MovieLens-shaped data, prepared below the folder."""
    return Path(run_script("data.py", "--make", "movielens", "--out", folder, *flags, cwd=folder).strip())


def train_command(workers: int, *arguments: object) -> list[str]:
    """The distributed job."""
    launcher = [sys.executable, "-m", "hybridbackend.run", "-n", str(workers)]
    return [*launcher, *worker_command(*arguments)]


def worker_command(*arguments: object) -> list[str]:
    """One worker of the job."""
    return [sys.executable, str(EXAMPLE / "train.py"), *map(str, arguments)]


@contextlib.contextmanager
def started(
    command: list[str], cwd: Path, log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """A job in a process group of its own; whatever of it is left at the end of the block is killed.

    `variables` are set for it on top of ours.
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
      workers: how many.
      arguments: flags, without --run-dir.
      cwd: where it runs and writes.
      timeout_s: when it is killed.
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
    """The workers' processes, in the order of ranks."""
    ranks = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            ranks.update({int(v.partition(b"=")[2]): int(child) for v in variables if v.startswith(b"LOCKSTEP_RANK=")})
    return [pid for _, pid in sorted(ranks.items())]
