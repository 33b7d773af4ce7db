"""Ends the processes that workers started, also those that left their worker's process group.

A process that calls setsid, as a daemon does, gets a process group of its own, and signals to the worker's group do not
reach it. It keeps the environment that it was started with. There LOCKSTEP_NOTES has the value of its worker:
the number of a pipe, which no other worker of the machine has.

A process that was started without the worker's environment, such as by `env -i`, is not found in this way.
"""

import contextlib
import errno
import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping

from lockstep.launch.base import notes

# Signals that ask a process to end. A stopped process must be continued to follow them.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# A process may start another one while the processes are read, so they are read again until none is left.
_MOST_READS = 5


def kill_group(group: int, signum: int) -> None:
    """Sends a signal to a process group that may be gone; continues stopped processes if the signal ends them."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)
        if signum in _ENDING:
            os.killpg(group, signal.SIGCONT)


def signal_started(workers: Mapping[int, str], signum: int) -> int:
    """Sends a signal to the processes that workers started and that left their groups; returns their number.

    Args:
      workers: The workers' process groups, and for each its value of LOCKSTEP_NOTES; empty for groups of other
        processes.
      signum: The signal.
    """
    groups = {f"{notes.VARIABLE}={mark}".encode(): group for group, mark in workers.items() if mark}
    sent = 0
    for name in os.listdir("/proc") if groups else ():
        if not name.isdecimal():
            continue
        # An error: it has ended, or belongs to another user.
        with contextlib.suppress(OSError), _handle_of(int(name)) as send:
            group = next((groups[entry] for entry in _environment(name) if entry in groups), None)
            if group is not None and os.getpgid(int(name)) != group:
                send(signum)
                sent += 1
    return sent


def kill_started(workers: Mapping[int, str]) -> None:
    """Kills the processes that workers started, in their groups and outside of them.

    Args:
      workers: As in `signal_started`.
    """
    for group in workers:
        kill_group(group, signal.SIGKILL)
    for _ in range(_MOST_READS):
        if not signal_started(workers, signal.SIGKILL):
            return


@contextlib.contextmanager
def _handle_of(process: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that sends a signal to a process.

    A handle keeps naming the process, whose number may soon name another one. Old kernels, some containers and some
    builds of Python have no handles; then the number has to do.
    """
    try:
        handle = os.pidfd_open(process)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        yield functools.partial(os.kill, process)
        return
    try:
        yield functools.partial(signal.pidfd_send_signal, handle)
    finally:
        os.close(handle)


def _environment(process: str) -> list[bytes]:
    """Returns the variables with which a process was started; none for a process that has ended."""
    with open(f"/proc/{process}/environ", "rb") as file:
        return file.read().split(b"\0")
