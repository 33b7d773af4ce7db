"""Starts the job of program.py, and says which processes are its."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In the environment of all that a run starts, also on its hosts: what tells its processes from all others.
MARK = "LOCKSTEP_SOAK"
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TF_CONFIG", "LOCKSTEP_", "HOROVOD_", "SLURM_")
# From the end of a launcher to that of all that it started.
_GONE_WITHIN_S = 15.0


def command(folder: Path, data: Path, *flags: object, launcher: Sequence[object] = ("-n", 2)) -> list[str]:
    """A job that trains in a folder.

    Args:
      folder: of the run.
      data: what `make_data` made.
      flags: of the program.
      launcher: the launcher's options.
    """
    program = [sys.executable, "-m", "tests.soak.program", folder, "--data", data, *flags]
    return [*map(str, [sys.executable, "-m", "hybridbackend.run", *launcher, *program])]


@contextlib.contextmanager
def started(
    words: Sequence[str], mark: str, log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """A launcher; at the end of the block it and all processes with its mark are killed.

    Args:
      words: the command.
      mark: of its processes, which no other run has.
      log: its output is appended to it.
      variables: for it, on top of what is here that is none of a launcher's.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    own = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", MARK: mark}
    with log.open("ab") as output:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**inherited, **own, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in processes(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def processes(mark: str) -> list[int]:
    """All that run with a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def left_over(mark: str) -> list[int]:
    """What still runs a while after a launcher has ended."""
    end = time.monotonic() + _GONE_WITHIN_S
    while (pids := processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return pids


def worker(folder: Path, rank: int, mark: str) -> int | None:
    """The process of a rank of the present attempt; None where it doesn't run."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / f"pid.{rank}").read_text())
        if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    return None


def steps_made(folder: Path) -> int:
    """How many steps worker 0 has reported, those that it made again among them."""
    with contextlib.suppress(OSError):
        return sum(not line.startswith(b"begin") for line in (folder / "batches.0").read_bytes().splitlines())
    return 0
