"""Starts the job of program.py, and says which processes are its."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lockstep.launch.placement.worker_environment import KEEP_MEMORY

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
    # malloc as the launcher sets it, but with one arena: what is free at the top of others it does not give back, even
    # when it is told to (program.py).
    memory = {**KEEP_MEMORY, "MALLOC_ARENA_MAX": "1"}
    own = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", MARK: mark, **memory}
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


def processes(mark: str, **variables: object) -> list[int]:
    """All that run with a mark, and with such variables in the environment that they were started with."""
    wanted = {f"{name}={value}".encode() for name, value in {MARK: mark, **variables}.items()}
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return found


def left_over(mark: str) -> list[int]:
    """What still runs a while after a launcher has ended."""
    end = time.monotonic() + _GONE_WITHIN_S
    while (pids := processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return pids


def last_step(folder: Path) -> int:
    """The last step that worker 0 has reported; 0 where it has reported none."""
    with contextlib.suppress(OSError), (folder / "batches.0").open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
        for line in reversed(log.read().split(b"\n")[:-1]):
            if not line.startswith(b"begin"):
                return int(line.split()[0])
    return 0
