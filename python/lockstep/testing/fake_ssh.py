"""A replacement for ssh and its service in tests: it runs the command on this machine, in a session of its own.

    LOCKSTEP_SSH="python fake_ssh.py" FAKE_SSH=folder

As with ssh, the command has the environment of a login, not this process's, and its input and output pass through this
process. If this process is killed, the command sees only that its input ends. To emulate a network that transports
nothing, stop this process (SIGSTOP). The folder holds process numbers in the files `ssh.<host>` and `agent.<host>`. The
optional file `login.<host>` has lines NAME=value with that host's environment.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

_LOGIN_VARIABLES = ("PATH", "HOME", "LANG")


def srun() -> str:
    """Returns a shell script that stands in for srun: it runs its command on one host, in this way."""
    return (
        "#!/bin/bash\nwhile [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && host=${1#*=}; shift; done\n"
        f'exec {sys.executable} {__file__} "$host" "$*"\n'
    )


def main() -> int:
    """Runs the command, and ends with its exit code."""
    *_, host, command = sys.argv[1:]
    folder = Path(os.environ["FAKE_SSH"])
    if host.endswith(".invalid"):
        print(f"ssh: Could not resolve hostname {host}: Name or service not known", file=sys.stderr)
        return 255
    environment = {name: os.environ[name] for name in _LOGIN_VARIABLES if name in os.environ}
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / f"login.{host}").read_text().splitlines():
            name, value = line.split("=", 1)
            environment[name] = value
    child = subprocess.Popen(
        ["sh", "-c", "echo Welcome to this host.; " + command],
        cwd="/",
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    for name, pid in (("ssh", os.getpid()), ("agent", child.pid)):
        (folder / f"{name}.{host}").write_text(str(pid))
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    ours = (0, child.stdin.fileno()), (child.stdout.fileno(), 1), (child.stderr.fileno(), 2)
    copiers = [threading.Thread(target=_copy, args=pair, daemon=True) for pair in ours]
    for copier in copiers:
        copier.start()
    for copier in copiers[1:]:
        copier.join()
    sys.stdout.flush()
    os._exit(child.wait() & 0xFF)


def _copy(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(source, 1 << 16):
            while chunk:
                chunk = chunk[os.write(target, chunk) :]
    with contextlib.suppress(OSError):
        os.close(target)


if __name__ == "__main__":
    sys.exit(main())
