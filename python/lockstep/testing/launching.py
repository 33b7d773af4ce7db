"""Helpers for tests that start a launcher with short programs as workers. They do not use TensorFlow."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Even on a busy machine, only a test that hangs takes so long.
DEADLINE_S = 120


def launchers(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Yields, for a fixture, a function that starts a launcher in a folder; kills all started processes at the end."""
    started = []

    def start(*options: str, worker: str = "", variables: dict[str, str] | None = None, **how: Any) -> subprocess.Popen:
        hidden = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TF_CONFIG", "LOCKSTEP_", "HOROVOD_", "SLURM_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        command = [sys.executable, *how.pop("program", ("-m", "lockstep.launch")), *options]
        if worker:
            (tmp_path / "worker.py").write_text("import os, signal, subprocess, sys, time\n" + worker)
            command += [sys.executable, "worker.py"]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environment, **(variables or {})},
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
    for path in tmp_path.glob("pid*"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            if runs(int(path.read_text())):
                os.kill(int(path.read_text()), signal.SIGKILL)
    for process in started:  # Its pipes end with the last process that holds them.
        with contextlib.suppress(ValueError):  # communicate() may have closed the pipes.
            process.communicate(timeout=DEADLINE_S)


def finish(process: subprocess.Popen, deadline_s: float = DEADLINE_S) -> tuple[int, list[str], list[str]]:
    """Waits for a process, and returns its exit code and the lines of stdout and stderr."""
    stdout, stderr = process.communicate(timeout=deadline_s)
    return process.returncode, stdout.splitlines(), stderr.splitlines()


def without_reminder(stderr: list[str]) -> list[str]:
    """Returns a launcher's lines without the one that reports workers which exchanged nothing."""
    return [line for line in stderr if not re.match(r"\[lockstep\] the \d+ workers exchanged nothing: ", line)]


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Waits until a condition is true, and returns its value."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {deadline_s} s for {what}"
        time.sleep(0.02)
    return value


def runs(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def pids_of(folder: Path, count: int, deadline_s: float = DEADLINE_S) -> list[int]:
    """Waits for the process numbers that `count` processes write with WRITE_PID, and returns them."""

    def read() -> list[int] | None:
        texts = [path.read_text() for path in folder.glob("pid*")]
        return [int(text) for text in texts] if len(texts) == count and all(texts) else None

    return wait_for(read, f"{count} processes to start", deadline_s)


RANK = 'rank = int(os.environ["LOCKSTEP_RANK"])\n'
WRITE_PID = RANK + 'open(f"pid{rank}", "w").write(str(os.getpid()))\n'
# A worker with a child, in the same process group, that the worker does not wait for.
WITH_CHILD = WRITE_PID + (
    'child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])\n'
    'open(f"pid-child{rank}", "w").write(str(child.pid))\n'
)
# The same, with a child that leaves the worker's process group and its session, as a daemon does.
WITH_DAEMON = WITH_CHILD.replace('600)"])', '600)"], start_new_session=True)')
# Many short sleeps, because a signal that arrives just before a sleep is handled only after it.
SLEEP = "for _ in range(6000): time.sleep(.1)\n"
# Rank 0 saves a checkpoint, then fails by itself. The others end because of it, and rank 0 ends after all of them.
ECHO_BEFORE_ITS_CAUSE = (
    WRITE_PID
    + """
from lockstep.launch.base import notes
from lockstep.testing.launching import runs
if rank:
    notes.say({"is": "failed", "because": "peer", "error": "rank 0 left", "trace": "File a"})
    sys.exit(1)
notes.say({"is": "saved", "path": "/c/model.ckpt-5", "step": 5, "resumes": True, "data": True})
notes.say({"is": "failed", "because": "itself"})
print("my own error", file=sys.stderr)
others = [f"pid{other}" for other in range(1, int(os.environ["LOCKSTEP_WORLD_SIZE"]))]
while not all(os.path.exists(f) and open(f).read() for f in others) or any(runs(int(open(f).read())) for f in others):
    time.sleep(.01)
sys.exit(7)
"""
)
