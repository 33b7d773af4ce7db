"""The first process of an emulated host (`emulated_cluster`), and the host itself: it ends, and all is gone.

    python emulated_host.py NAME HOSTS_FILE

Makes namespaces, and in them a process that sets up what a host has of its own: a name, network interfaces, process
numbers, System V and POSIX shared memory, /proc, /dev/shm, /etc/hosts. Prints that process's number as the starter
sees it. When its standard input ends, which is when the starter has ended, however it did, the process ends; the kernel
then kills all others in its namespace, and with the last one the network's namespace goes, interfaces and all. So
nothing has a name that could stay behind, not even after SIGKILL.

Plain Python without modules of ours: it starts in milliseconds.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys

# <linux/sched.h> and <linux/mount.h>
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWPID, _CLONE_NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000,
)  # fmt: skip
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


def main() -> None:
    """Makes the namespaces and waits for the host's end."""
    name, hosts_file = sys.argv[1:]
    # An interrupt at the terminal is for the test, which ends its hosts in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
