"""Stands for ssh and the service it talks to, in tests: runs the command on this machine, in a session of its own.

    LOCKSTEP_SSH="python fake_ssh.py" FAKE_SSH=folder

As with ssh, the command has the environment of a login, not ours; its bytes go through us; and when we are killed it
finds its input at an end, and no more. A stopped one (SIGSTOP) is a network that carries nothing. In the folder are
`ssh.<host>` and `agent.<host>` with process numbers, and `login.<host>`, if it is there, has lines NAME=value of that
host's environment.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

_OF_A_LOGIN = ("PATH", "HOME", "LANG")


def main() -> int:
    """Runs it."""
    *_, host, command = sys.argv[1:]
    folder = Path(os.environ["FAKE_SSH"])
    if host.endswith(".invalid"):
        print(f"ssh: Could not resolve hostname {host}: Name or service not known", file=sys.stderr)
        return 255
    environment = {name: os.environ[name] for name in _OF_A_LOGIN if name in os.environ}
    with contextlib.suppress(FileNotFoundError):
        environment.update(line.split("=", 1) for line in (folder / f"login.{host}").read_text().splitlines())
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
    ours = (0, child.stdin.fileno()), (child.stdout.fileno(), 1), (child.stderr.fileno(), 2)
    carriers = [threading.Thread(target=_carry, args=pair, daemon=True) for pair in ours]
    for carrier in carriers:
        carrier.start()
    for carrier in carriers[1:]:
        carrier.join()
    sys.stdout.flush()
    os._exit(child.wait() & 0xFF)


def _carry(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(source, 1 << 16):
            while chunk:
                chunk = chunk[os.write(target, chunk) :]
    with contextlib.suppress(OSError):
        os.close(target)


if __name__ == "__main__":
    sys.exit(main())
