"""A replacement for ssh and its service between emulated hosts (`emulated_cluster`), over their network.

    python emulated_ssh.py --serve                        on each host: the service
    LOCKSTEP_SSH="python emulated_ssh.py"                 [options] HOST COMMAND: the client, for a launcher

As with ssh, the command has the environment of a login, not the client's. Its input and output pass through the
network, so that a cut cable stops them silently. If the client is killed, the command's input ends. It needs no
authentication, because the hosts' network has no connection to other networks.

A connection carries the command and its input to the host, and frames back. A frame is one byte with its kind (stdout,
stderr or exit code), four bytes with the length, and the content.
"""

import contextlib
import io
import os
import socket
import struct
import subprocess
import sys
import threading
from typing import IO

_PORT = 22
_LOGIN_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")
_FRAME = struct.Struct("!BI")
_EXIT_CODE, _STDOUT, _STDERR = 0, 1, 2
_FAILED = 255  # ssh's own exit code
_READ_BYTES = 1 << 16


def serve() -> None:
    """Answers calls without end."""
    with socket.create_server(("::", _PORT), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_run, args=(connection,), daemon=True).start()


def _run(connection: socket.socket) -> None:
    """Runs the command of one call to its end."""
    with connection, connection.makefile("rb") as reader:
        length = reader.read(4)
        if len(length) < 4:
            return
        command = reader.read(int.from_bytes(length, "big")).decode()
        child = subprocess.Popen(
            ["sh", "-c", command],
            cwd="/",
            env={name: os.environ[name] for name in _LOGIN_VARIABLES if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        lock = threading.Lock()
        copiers = [
            threading.Thread(target=_send, args=(connection, lock, kind, pipe), daemon=True)
            for kind, pipe in ((_STDOUT, child.stdout), (_STDERR, child.stderr))
        ]
        copiers.append(threading.Thread(target=_feed, args=(reader, child.stdin), daemon=True))
        for copier in copiers:
            copier.start()
        for copier in copiers[:2]:
            copier.join()
        code = child.wait() & 0xFF
        with contextlib.suppress(OSError):
            connection.sendall(_FRAME.pack(_EXIT_CODE, 1) + bytes([code]))
            connection.shutdown(socket.SHUT_RDWR)
        copiers[2].join()


def _send(connection: socket.socket, lock: threading.Lock, kind: int, pipe: IO[bytes]) -> None:
    """Sends the command's output until it ends; closes the command's pipe if the connection breaks."""
    with contextlib.suppress(OSError), pipe:
        while chunk := pipe.read(_READ_BYTES):
            with lock:
                connection.sendall(_FRAME.pack(kind, len(chunk)) + chunk)


def _feed(reader: io.BufferedReader, pipe: IO[bytes]) -> None:
    """Copies the client's input to the command."""
    with contextlib.suppress(OSError), pipe:
        while chunk := reader.read1(_READ_BYTES):
            pipe.write(chunk)


def call(host: str, command: str) -> int:
    """Runs a command on a host, as ssh does; returns its exit code."""
    try:
        connection = socket.create_connection((host, _PORT), timeout=20)
    except OSError as error:
        print(f"ssh: connect to host {host}: {error}", file=sys.stderr)
        return _FAILED
    connection.settimeout(None)
    words = command.encode()
    connection.sendall(len(words).to_bytes(4, "big") + words)
    threading.Thread(target=_send_input, args=(connection,), daemon=True).start()
    with contextlib.suppress(OSError), connection.makefile("rb") as reader:
        while len(head := reader.read(_FRAME.size)) == _FRAME.size:
            kind, length = _FRAME.unpack(head)
            chunk = reader.read(length)
            if kind == _EXIT_CODE and chunk:
                return chunk[0]
            while chunk:
                chunk = chunk[os.write(kind, chunk) :]
    print(f"ssh: connection to {host} lost", file=sys.stderr)
    return _FAILED


def _send_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := os.read(0, _READ_BYTES):
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)


def main() -> None:
    """Runs the service or a client."""
    if sys.argv[1:] == ["--serve"]:
        serve()
    *_, host, command = sys.argv[1:]
    code = call(host.rpartition("@")[2].strip("[]"), command)
    # os._exit does not wait for the thread that reads standard input.
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
