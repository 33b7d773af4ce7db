"""The server's answers to requests that no client should send: each gets an answer, and holds no thread."""

# Promise of this file (robustness.md): the example's server answers every hostile request.

import base64
import json
import re
import socket
import threading
import time
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import server
from lockstep.testing.mutations import feed

pytestmark = pytest.mark.newest_only

PATH = "/v1/models/model:predict"
INPUTS = {"user": ["10", {"b64": base64.b64encode(b"\xff").decode()}], "item": [5, 6]}
MOST_SECONDS = 20.0


class Model(server.Model):
    """A model without a session that returns its inputs."""

    def __init__(self):
        inputs = {name: types.SimpleNamespace(dtype=dtype) for name, dtype in (("user", tf.string), ("item", tf.int64))}
        self._signatures = {"serving_default": types.SimpleNamespace(inputs=inputs)}
        self.export, self.sequence, self.version = "1", 0, 3

    def _call(self, name, inputs):
        if inputs["item"].size > 3:
            raise tf.errors.InternalError(None, None, "too many")
        return {"item": inputs["item"], "users": np.array([inputs["user"].size])}


@pytest.fixture(name="port", scope="module")
def _port():
    reloader = types.SimpleNamespace(lock=server.SharedLock(), refused={}, model=Model())
    server.Handler.timeout, usual = 2.0, server.Handler.timeout
    with server.Server(0, reloader) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.server_port
        serving.shutdown()
        thread.join(30)
    server.Handler.timeout = usual


def ask(port, request, ends=True):
    """Sends bytes, and returns all that is answered. `ends`: whether the client then says that it sends no more."""
    with socket.create_connection(("localhost", port), MOST_SECONDS) as connection:
        connection.sendall(request)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer


def post(body, *headers):
    if not any(header.startswith(("Content-Length", "Transfer")) for header in headers):
        headers = (*headers, f"Content-Length: {len(body)}")
    return f"POST {PATH} HTTP/1.1\r\n".encode() + "\r\n".join(["Host: x", *headers, "", ""]).encode("latin-1") + body


def inputs(**changed):
    return json.dumps({"inputs": {**INPUTS, **changed}}).encode()


def test_a_right_request_gets_the_outputs(port):
    answer = ask(port, post(inputs()))
    assert answer.startswith(b"HTTP/1.1 200 ") and json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"] == {
        "item": [5, 6],
        "users": [2],
    }


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(b"", "Content-Length: -1"), 400),
        (post(inputs(), "Content-Length: ²"), 400),
        (post(inputs(), "Content-Length: 1e3"), 400),
        (post(inputs(), "Content-Length: 5", "Content-Length: 6"), 400),
        (post(b"{}", "Content-Length: 100"), 400),
        (post(b"", f"Content-Length: {10**15}"), 413),
        (post(b"", "Content-Length: " + "9" * 5000), 400),
        (post(b"5\r\n{}\r\n", "Transfer-Encoding: chunked"), 411),
        (f"POST {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 411),
        (post(b"[" * 100_000), 400),
        (post(b"[1]"), 400),
        (post(b"\xff\xfe"), 400),
        (post(b'{"inputs": [[1]]}'), 400),
        (post(inputs(item=[10**400])), 400),
        (post(inputs(item=[2**64])), 400),
        (post(inputs(item=[[1], [2, 3]])), 400),
        (post(inputs(item=[{"b64": 5}])), 400),
        (post(inputs(item=[{"b64": "%"}])), 400),
        (post(inputs(other=[1])), 400),
        (post(inputs(item=[1, 2, 3, 4])), 500),
        (b"DELETE / HTTP/1.1\r\n\r\n", 501),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"nonsense\r\n\r\n", 400),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_wrong_request_gets_an_answer_that_says_so(port, request_bytes, status):
    answer = ask(port, request_bytes)
    assert re.match(rb"HTTP/1\.[01] %d " % status, answer) or b"code: %d" % status in answer, answer[:200]


@pytest.mark.parametrize("request_bytes", [post(b"", "Content-Length: -1"), post(b"", "Content-Length: 9")])
def test_a_client_that_sends_nothing_more_holds_no_thread(port, request_bytes):
    begin = time.monotonic()
    assert re.match(rb"HTTP/1.1 (400|408) ", ask(port, request_bytes, ends=False))
    assert time.monotonic() - begin < MOST_SECONDS
    assert ask(port, post(inputs())).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (server._MOST_BYTES + 1, (), 413),
        (32 << 20, ("Transfer-Encoding: chunked",), 411),
        (32 << 20, ("Content-Length: x",), 400),
    ],
)
def test_a_client_that_sends_all_of_a_refused_body_gets_its_answer(port, body, headers, status):
    assert ask(port, post(b" " * body, *headers), ends=False).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_client_that_sends_a_refused_body_without_end_holds_no_thread(port, monkeypatch, is_fast):
    monkeypatch.setattr(server, "_DRAINED_BYTES", (16 << 20) if is_fast else server._DRAINED_BYTES)
    begin = time.monotonic()
    with socket.create_connection(("localhost", port), MOST_SECONDS) as connection:
        connection.sendall(post(b"", f"Content-Length: {10**15}"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while time.monotonic() - begin < MOST_SECONDS:
                connection.sendall(b" " * (1 << 20) if is_fast else b" ")
                time.sleep(0 if is_fast else 0.1)


GET = b"GET /v1/models/model HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "header",
    [
        "Content-Length: %d",
        "content-length: 0%d",
        "Content-Length : %d",
        "Content-Length: 0\r\nContent-Length: %d",
        "no colon\r\nContent-Length: %d",
        "Transfer-Encoding: chunked",
    ],
)
def test_the_body_of_a_get_is_no_second_request(port, header):
    body = GET + b"\r\n"
    header = header % len(body) if "%" in header else header
    assert ask(port, GET + header.encode() + b"\r\n\r\n" + body).count(b"HTTP/1.1 ") == 1


def test_a_connection_is_kept_after_a_get_without_a_body(port):
    assert ask(port, 2 * (GET + b"\r\n") + GET + b"Content-Length: 0\r\n\r\n").count(b"HTTP/1.1 200 ") == 3


def test_a_client_that_sends_a_body_byte_by_byte_gets_an_error(port):
    with socket.create_connection(("localhost", port), MOST_SECONDS) as connection:
        connection.sendall(post(b"", "Content-Length: 1000"))
        begin = time.monotonic()
        connection.settimeout(0.2)
        while time.monotonic() - begin < MOST_SECONDS:
            connection.sendall(b" ")
            try:
                answer = connection.recv(100)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_changed_request_gets_an_answer(port, count):
    def check(data):
        answer = ask(port, data)
        # The first line of a request must have something to answer.
        assert answer or not data.split(b"\n")[0].strip(), data[:200]

    get = b"GET /v1/models/model HTTP/1.1\r\nHost: x\r\n\r\n"
    feed("examples/serving", check, [post(inputs()), get, post(inputs(), "Connection: close")], (), count)
    assert ask(port, post(inputs())).startswith(b"HTTP/1.1 200 ")
