"""The first process of an emulated host (`emulated_cluster`). The host exists as long as this process.

    python emulated_host.py live NAME HOSTS_FILE

creates namespaces and starts a process in them. This process sets up the host's own name, network interfaces, process
numbers, System V and POSIX shared memory, /proc, /dev/shm and /etc/hosts. Once the host is set up, the program prints
the number that this process has outside. The process ends when its standard input ends, which happens whenever the
starter has ended. The kernel then kills all other processes in the namespace. With the last of them, the network
namespace and its interfaces disappear. Therefore nothing remains, not even after SIGKILL.

    python emulated_host.py run PID FOLDER PROGRAM ARGUMENT...

runs a program on the host whose first process is PID, and ends with the program's exit code or signal. If it is killed
itself, the program is killed, too. (`nsenter` cannot replace it: it stops when its program is stopped, and remains
stopped when the program is killed.)

The program uses plain Python without this project's modules, so that it starts in milliseconds.
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
# The namespaces of process numbers and files come last: setns moves only children of this process into the former.
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


def _be_first_process(name: str, hosts_file: str, ready: int) -> None:
    """Sets up the host in its first process, writes to `ready`, and waits until standard input ends."""
    # The following mounts are visible only on this host.
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc")
    _mount("tmpfs", "/dev/shm", "tmpfs")
    _mount(hosts_file, "/etc/hosts", "", _MS_BIND)
    socket.sethostname(name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, stdin=subprocess.DEVNULL)
    # The kernel reaps orphaned processes.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(ready, b"ready")
    os.close(ready)
    sys.stdin.read()


def run_on(pid: int, folder: str, body: Callable[[], None]) -> NoReturn:
    """Calls a function in a new process on a host, and ends this process with the same exit code or signal.

    This process must have only one thread. If it is killed, the new process is killed, too.

    Args:
      pid: the number of the host's first process.
      folder: the folder in which the new process starts.
      body: the function; the new process exits with 0 if it returns.
    """
    # All namespaces are opened before the first is entered, because afterwards /proc is the host's.
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
            # As at the end of any program, so that a worker leaves its job in good order.
            atexit._run_exitfuncs()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
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
    """Creates a host and waits for its end, or runs a program on a host."""
    what, *arguments = sys.argv[1:]
    if what == "run":
        pid, folder, *words = arguments
        run_on(int(pid), folder, lambda: _become(words))
    # An interrupt at the terminal is meant for the test, which then ends its hosts itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name, hosts_file = arguments
    spaces = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    _checked(_libc.unshare(spaces), "unshare")
    # Only this process knows the number, and only the first process knows when the host is ready. One of them prints,
    # because nothing orders the lines of two.
    wait, ready = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(wait)
        _be_first_process(name, hosts_file, ready)
        os._exit(0)
    os.close(ready)
    if os.read(wait, 5):
        print(first, flush=True)
    os.waitpid(first, 0)


if __name__ == "__main__":
    main()
