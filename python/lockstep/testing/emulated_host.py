"""The first process of an emulated host (`emulated_cluster`), and the host itself: it ends, and all is gone.

    python emulated_host.py live NAME HOSTS_FILE

makes namespaces, and in them a process that sets up what a host has of its own: a name, network interfaces, process
numbers, System V and POSIX shared memory, /proc, /dev/shm, /etc/hosts. Prints that process's number as the starter
sees it. When its standard input ends, which is when the starter has ended, however it did, the process ends; the kernel
then kills all others in its namespace, and with the last one the network's namespace goes, interfaces and all. So
nothing has a name that could stay behind, not even after SIGKILL.

    python emulated_host.py run PID FOLDER PROGRAM ARGUMENT...

runs a program on the host whose first process is PID, and ends as the program does. Where it is killed itself, so is
the program. (`nsenter` would do, but stops with a program that is stopped, and stays so when that is killed.)

Plain Python without modules of ours: it starts in milliseconds.
"""

import atexit
import ctypes
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

# <linux/sched.h> and <linux/mount.h>
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWPID, _CLONE_NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000,
)  # fmt: skip
# Process numbers and files last: the others are entered by this process, these count for its children.
_KINDS = ("net", "uts", "ipc", "pid", "mnt")
_PR_SET_PDEATHSIG = 1
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, None), f"mount {source} on {target}")


def _live(name: str, hosts_file: str) -> None:
    """What the host's first process does."""
    # What is mounted from here on is the host's alone.
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc")
    _mount("tmpfs", "/dev/shm", "tmpfs")
    _mount(hosts_file, "/etc/hosts", "", _MS_BIND)
    socket.sethostname(name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, stdin=subprocess.DEVNULL)
    # Children that others have left are reaped by the kernel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    sys.stdin.read()


def run_on(pid: int, folder: str, body: Callable[[], None]) -> NoReturn:
    """Calls a function in a new process on a host, and ends as that does; to be called in a process of one thread.

    Where this process is killed, so is the new one.

    Args:
      pid: of the host's first process.
      folder: where it starts.
      body: what it does; it exits with 0 where that returns.
    """
    # All of them are opened before the first is entered: /proc is another one's then.
    spaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _KINDS]
    for kind, space in zip(_KINDS, spaces, strict=True):
        _checked(_libc.setns(space, 0), f"setns {kind}")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
            os.chdir(folder)
            body()
            # As at the end of any program: who has done its part leaves its job.
            atexit._run_exitfuncs()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _become(words: list[str]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(words[0], words)


def main() -> None:
    """Makes a host and waits for its end, or runs a program on one."""
    what, *arguments = sys.argv[1:]
    if what == "run":
        pid, folder, *words = arguments
        run_on(int(pid), folder, lambda: _become(words))
    # An interrupt at the terminal is for the test, which ends its hosts in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name, hosts_file = arguments
    spaces = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    _checked(_libc.unshare(spaces), "unshare")
    first = os.fork()
    if first == 0:
        _live(name, hosts_file)
        os._exit(0)
    print(first, flush=True)
    os.waitpid(first, 0)


if __name__ == "__main__":
    main()
