"""Starts the job of program.py, and finds its processes."""

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
# This variable is in the environment of all processes of a run, also on its hosts, and identifies them.
MARK = "LOCKSTEP_SOAK"
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TF_CONFIG", "LOCKSTEP_", "HOROVOD_", "SLURM_")
# Seconds from the end of a launcher to the end of all processes that it started.
_GONE_WITHIN_S = 15.0


def command(folder: Path, data: Path, *flags: object, launcher: Sequence[object] = ("-n", 2)) -> list[str]:
    """Returns the command of a job that trains in a folder.

    Args:
      folder: the run's folder.
      data: the result of `make_data`.
      flags: flags of the program.
      launcher: the launcher's options.
    """
    program = [sys.executable, "-m", "tests.soak.program", folder, "--data", data, *flags]
    return [*map(str, [sys.executable, "-m", "hybridbackend.run", *launcher, *program])]


@contextlib.contextmanager
def started(
    words: Sequence[str], mark: str, log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """Yields a launcher. At the end of the block, kills it and all processes with its mark.

    Args:
      words: the command.
      mark: identifies its processes; no other run has it.
      log: the launcher's output is appended to this file.
      variables: in addition to this process's variables, without a launcher's.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    # malloc as the launcher sets it, but with one arena. It does not return free memory at the top of other arenas,
    # even on request (program.py).
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
    """Returns all processes with a mark, and with these variables in their initial environment."""
    wanted = {f"{name}={value}".encode() for name, value in {MARK: mark, **variables}.items()}
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return found


def left_over(mark: str) -> list[int]:
    """Returns the processes that still run some time after a launcher's end."""
    end = time.monotonic() + _GONE_WITHIN_S
    while (pids := processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return pids


def last_step(folder: Path) -> int:
    """Returns the last step that worker 0 has reported; 0 if there is none."""
    with contextlib.suppress(OSError), (folder / "batches.0").open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
        for line in reversed(log.read().split(b"\n")[:-1]):
            if not line.startswith(b"begin"):
                return int(line.split()[0])
    return 0
