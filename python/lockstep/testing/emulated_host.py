"""The first process of an emulated host (`emulated_cluster`). The host ends with it and leaves nothing behind.

    python emulated_host.py live NAME HOSTS_FILE

This makes namespaces and a first process in them. The process sets up what belongs to a host: a name, network
interfaces, process numbers, System V and POSIX shared memory, /proc, /dev/shm and /etc/hosts. The program prints the
number that this process has on the machine.

The first process ends when its standard input ends, that is, when the process that started it has ended in any way. The
kernel then kills all other processes in its namespace. With the last of them, the network namespace and its interfaces
end as well. So nothing has a name that could stay behind, not even after SIGKILL.

    python emulated_host.py run PID FOLDER PROGRAM ARGUMENT...

This runs a program on the host whose first process is PID, and ends as the program ends. If it is killed itself, the
program is killed too. (`nsenter` would suffice otherwise. But it stops when the program is stopped, and stays stopped
when the program is killed.)

This module uses the standard library only, so that it starts in milliseconds.
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
# The namespaces of a host. That of process numbers counts only for children of the process that enters it.
_NAMESPACES = ("net", "uts", "ipc", "pid", "mnt")
_PR_SET_PDEATHSIG = 1
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, None), f"mount {source} on {target}")


def _be_first_process(name: str, hosts_file: str) -> None:
    """Sets up the host, then waits until the process that started it ends."""
    # From here on, other processes of the machine do not see what is mounted.
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc")
    _mount("tmpfs", "/dev/shm", "tmpfs")
    _mount(hosts_file, "/etc/hosts", "", _MS_BIND)
    socket.sethostname(name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, stdin=subprocess.DEVNULL)
    # The kernel reaps orphans that become children of this process.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    sys.stdin.read()


def run_on(pid: int, folder: str, body: Callable[[], None]) -> NoReturn:
    """Calls a function in a new process on a host, and ends this process as the new one ends.

    This process must have one thread only. If it is killed, the new one is killed too.

    Args:
      pid: number of the host's first process.
      folder: the folder in which the new process starts.
      body: the function. If it returns, the new process exits with 0.
    """
    # All files are opened before the first namespace is entered, because /proc then belongs to the host.
    spaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _NAMESPACES]
    for kind, space in zip(_NAMESPACES, spaces, strict=True):
        _checked(_libc.setns(space, 0), f"setns {kind}")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
            os.chdir(folder)
            body()
            # As at the end of any program: a worker that is done leaves its job in good order.
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
    # An interrupt at the terminal is meant for the test, which ends its hosts itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name, hosts_file = arguments
    spaces = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    _checked(_libc.unshare(spaces), "unshare")
    first = os.fork()
    if first == 0:
        _be_first_process(name, hosts_file)
        os._exit(0)
    print(first, flush=True)
    os.waitpid(first, 0)


if __name__ == "__main__":
    main()
