"""Nothing of a job outlives its launcher, not even one that was killed with SIGKILL.

Two nets: the kernel kills each worker when the launcher dies (PR_SET_PDEATHSIG), and a guard process, which sees the
launcher's death as the end of a pipe, kills the workers' process groups, that is also what workers started.
"""

import contextlib
import ctypes
import os
import signal
from types import TracebackType

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_DONE = b"done\n"


def die_with(parent: int) -> None:
    """Called between fork and exec: has the kernel kill this process when `parent`, its maker, dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # It died before we asked.
        os._exit(1)


def kill_group(group: int, signum: int) -> None:
    """Sends a signal to a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


class Guard:
    """A process that kills the groups it was told of when its maker ends without leaving the `with` block.

    Made before threads and signal handlers exist, since it is a fork that lives on.
    """

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write)
                _watch(read)
            finally:
                os._exit(0)
        os.close(read)

    def watch(self, group: int) -> None:
        """Adds a process group."""
        with contextlib.suppress(BrokenPipeError):  # Somebody killed the guard: the kernel's net is left.
            os.write(self._write, b"%d\n" % group)

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, _DONE)
        os.close(self._write)
        os.waitpid(self._pid, 0)


def _watch(pipe: int) -> None:
    # A session of its own, so that neither the terminal's signals nor a kill of the launcher's group reach it; and
    # none of the launcher's files, so that readers of its output see the end when it ends.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    told = b""
    while chunk := os.read(pipe, 4096):
        told += chunk
    if not told.endswith(_DONE):
        for group in told.split():
            kill_group(int(group), signal.SIGKILL)
