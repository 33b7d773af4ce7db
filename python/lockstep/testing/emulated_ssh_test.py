"""The replacement for ssh, between two processes of this machine: the service listens at another port."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from lockstep.testing import emulated_ssh
from lockstep.testing.launching import DEADLINE_S, runs, wait_for
from lockstep.testing.workers import _free_port

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def _start(port, *words, **variables):
    code = "import sys; from lockstep.testing import emulated_ssh as ssh; ssh._PORT = int(sys.argv.pop(1)); ssh.main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, str(port), *words],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def port():
    """Yields the port of a service, which is killed at the end."""
    port = _free_port()
    service = _start(port, "--serve", LANG="of the login", X="of the login")
    assert service.stdout.readline() == "ready\n"
    yield port
    service.kill()
    service.communicate(timeout=DEADLINE_S)


def test_a_command_has_the_clients_input_and_its_output_comes_back(port):
    client = _start(port, "-T", "-o", "A=b", "me@localhost", "cat; echo err >&2; exit 7")
    stdout, stderr = client.communicate("x" * 300_000 + "\n", timeout=DEADLINE_S)
    assert (client.returncode, stdout, stderr) == (7, "x" * 300_000 + "\n", "err\n")


def test_a_command_has_the_environment_of_a_login(port):
    client = _start(port, "[::1]", "echo $LANG ${X-none} $(pwd)", LANG="ours", X="ours")
    assert client.communicate(timeout=DEADLINE_S)[0] == "of the login none /\n"


def test_a_signal_that_ends_the_command_is_its_exit_code(port):
    client = _start(port, "localhost", "kill -9 $$")
    client.communicate(timeout=DEADLINE_S)
    assert client.returncode == -signal.SIGKILL & 0xFF


def test_the_input_of_a_command_ends_with_its_client(port, tmp_path):
    client = _start(port, "localhost", f"echo $$ > {tmp_path}/pid; cat; echo > {tmp_path}/ended")
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the command")
    client.kill()
    client.communicate(timeout=DEADLINE_S)
    wait_for((tmp_path / "ended").exists, "the end of the command's input")
    wait_for(lambda: not runs(int((tmp_path / "pid").read_text())), "the command to end")


def test_a_host_without_a_service_is_an_error_as_of_ssh():
    port = _free_port()
    client = _start(port, "me@127.0.0.1", "true")
    _, stderr = client.communicate(timeout=DEADLINE_S)
    assert client.returncode == 255
    assert stderr.startswith("ssh: connect to host 127.0.0.1: ") and "refused" in stderr


@pytest.mark.parametrize(
    "answer",
    [b"", b"\0\0", b"\0\0\0\0\1", b"\1\0\0\0\2o"],
    ids=["nothing", "half a head", "no exit code", "half a frame"],
)
def test_a_connection_that_ends_early_is_lost(monkeypatch, capfd, answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(emulated_ssh, "_PORT", server.getsockname()[1])
        monkeypatch.setattr(emulated_ssh, "_send_input", lambda connection: None)
        client = socket.create_connection(server.getsockname())
        monkeypatch.setattr(emulated_ssh.socket, "create_connection", lambda *_, **__: client)
        with server.accept()[0] as connection:
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            assert emulated_ssh.call("127.0.0.1", "true") == 255
        client.close()
    assert capfd.readouterr().err == "ssh: connection to 127.0.0.1 lost\n"
