"""Ends all processes of a job with its launcher, also when the launcher is killed with SIGKILL.

There are two safety nets. The kernel kills each worker when the launcher dies (PR_SET_PDEATHSIG). And a guard process
sees the launcher's death as the end of a pipe. It kills the workers' process groups and all that the workers started
(`started.py`). The guard of a job on several hosts also notices a frozen launcher, because the launcher has to report
regularly that it is alive.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
from collections.abc import Collection, Mapping
from types import TracebackType

from lockstep.launch.local.started import kill_started

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
# The lines that the guard reads. Any other line has the number of a process group, and its worker's mark if it has one.
_DONE, _ALIVE, _FOLDER, _SILENCE = b"done", b"alive", b"folder ", b"silence "


def die_with(parent: int) -> None:
    """Has the kernel kill this process when `parent` dies. To be called between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # It died before the call of prctl.
        os._exit(1)


class Guard:
    """A process that kills registered process groups when its parent ends without leaving the `with` block.

    Create it before threads and signal handlers exist, since it is a fork that keeps running.

    Args:
      silence_s: The guard also kills the groups when its parent did not call `alive` for so long; None: no limit.
      kills_parent: Whether the guard then kills its parent as well.
    """

    def __init__(self, silence_s: float | None = None, kills_parent: bool = False) -> None:
        read, self._write = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write)
                _watch(read, silence_s, (parent,) if kills_parent else ())
            finally:
                os._exit(0)
        os.close(read)

    def watch(self, group: int, mark: str = "") -> None:
        """Registers a process group, and the mark of a worker that leads it (`started.py`)."""
        self._tell(b"%d %s" % (group, mark.encode()))

    def removes(self, folder: str) -> None:
        """Registers a folder that is removed with its contents."""
        self._tell(_FOLDER + os.fsencode(folder))

    def set_silence(self, silence_s: float) -> None:
        """Sets the limit of silence."""
        self._tell(_SILENCE + b"%f" % silence_s)

    def alive(self) -> None:
        """Tells the guard that its parent is alive."""
        self._tell(_ALIVE)

    def _tell(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # Somebody killed the guard: the kernel still ends the workers.
            os.write(self._write, line + b"\n")

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tell(_DONE)
        os.close(self._write)
        os.waitpid(self._pid, 0)


def _watch(pipe: int, silence_s: float | None, parents: Collection[int]) -> None:
    # It has a session of its own, so that neither the terminal's signals nor a kill of the launcher's group reach it.
    # It holds none of the launcher's files, so that readers of the launcher's output see the end when the launcher
    # ends.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    groups: dict[int, str] = {}
    folders: list[bytes] = []
    rest = b""
    while True:
        if not select.select([pipe], [], [], silence_s)[0]:
            _kill(groups, parents)
            if parents:
                break
            silence_s = None  # The launcher may continue later, and then finds that its workers are gone.
            continue
        chunk = os.read(pipe, 4096)
        if not chunk:
            _kill(groups, ())
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line == _DONE:
                return
            if line.startswith(_FOLDER):
                folders.append(line[len(_FOLDER) :])
            elif line.startswith(_SILENCE):
                silence_s = float(line[len(_SILENCE) :])
            elif line != _ALIVE:
                group, _, mark = line.partition(b" ")
                groups[int(group)] = mark.decode()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _kill(groups: Mapping[int, str], parents: Collection[int]) -> None:
    for parent in parents:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGKILL)
    kill_started(groups)
