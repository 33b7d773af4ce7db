"""Serves an export and the deltas on it with stock TensorFlow: this process never imports Lockstep.

    python examples/serving/server.py --exports exports --port 8501
    curl -d '{"inputs": {"user": ["17"], "item": [5]}}' localhost:8501/v1/models/model:predict

It loads the newest export of the folder, answers requests, and applies deltas as they come. Requests have the form of
TensorFlow Serving's REST API. A header, `X-Model-Version`, names which version computed an answer. `GET
/v1/models/model` returns the version, and the deltas that were refused.

A request sees the model before a delta or after it, and never a mix: requests share a lock that a delta takes
exclusively. A delta that is missing, damaged or out of order changes nothing; the log names it. It is tried again, as
its files may still come.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import logging
import os
import re
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

_SIGNATURE = "serving_default"
_CHUNK_BYTES = 16 << 20
# The longest body of a request.
_MOST_BYTES = 64 << 20
# The most bytes that are read after the last answer of a connection, and the seconds in which the next ones must come.
_DRAINED_BYTES = 4 * _MOST_BYTES
_DRAIN_SECONDS = 5.0
# The errors of inputs that the model cannot take.
_WRONG_INPUTS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    tf.errors.InvalidArgumentError,
)
_log = logging.getLogger("server")


class Refused(Exception):
    """A delta that cannot be applied; the message names it."""


class SharedLock:
    """A lock for any number of readers, or one exclusive writer. New readers wait for a waiting writer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = self._writers = 0  # guarded by _changed; the writers wait or write
        self._writing = threading.Lock()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Holds the lock together with other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the lock exclusively."""
        with self._changed:
            self._writers += 1
        try:
            with self._writing:
                with self._changed:
                    self._changed.wait_for(lambda: not self._readers)
                yield
        finally:
            with self._changed:
                self._writers -= 1
                self._changed.notify_all()


class Model:
    """An export in a session. Closing the session frees all of its memory.

    Attributes:
      export: the name of the export's folder.
      sequence: how many deltas have been applied.
      version: the number of the checkpoint whose values it has.
    """

    def __init__(self, directory: Path) -> None:
        with tf.Graph().as_default():
            self._session = tf.Session()
            self._signatures = tf.saved_model.load(self._session, ["serve"], str(directory)).signature_def
        self.export, self.sequence = directory.name, 0
        self.version = int(self._call("lockstep_version", {})["version"])

    def predict(self, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """Returns the outputs of the serving signature by name."""
        known = self._signatures[_SIGNATURE].inputs
        if set(inputs) != set(known):
            raise ValueError(f"the inputs are {sorted(inputs)}, wanted {sorted(known)}")
        types = {name: tf.as_dtype(known[name].dtype).as_numpy_dtype for name in inputs}
        return self._call(_SIGNATURE, {name: np.array(value, types[name]) for name, value in inputs.items()})

    def apply(self, delta: Path) -> None:
        """Applies a delta, or raises Refused and stays as it is."""
        try:
            self.version = int(self._call("lockstep_apply_delta", {"prefix": str(delta / "delta")})["version"])
        except tf.errors.OpError as error:
            raise Refused(f"{delta.name}: {_sentence(error)}") from error
        self.sequence += 1

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def _call(self, name: str, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        signature = self._signatures[name]
        feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
        return self._session.run({key: info.name for key, info in signature.outputs.items()}, feeds)


def _sentence(error: tf.errors.OpError) -> str:
    """Returns an operation's own sentence; a session puts the place in the graph before it."""
    own = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
    return own.message.splitlines()[0].strip()


def check(delta: Path, model: Model) -> None:
    """Raises Refused if a delta is damaged, or is not the next one of a model."""
    record = _record(delta)
    got = record["export"], record["sequence"], record["previous"]
    wanted = model.export, model.sequence + 1, model.version
    if got != wanted:
        raise Refused(
            f"{delta.name}: out of order: it is number {got[1]} on export {got[0]} and builds on version {got[2]}; "
            f"wanted number {wanted[1]} on {wanted[0]}, version {wanted[2]}"
        )
    for name, sums in record["files"].items():
        try:
            found = _sums(delta / name)
        except OSError as error:
            raise Refused(f"{delta.name}: damaged: {name}: {error.strerror}") from error
        if found != sums:
            raise Refused(f"{delta.name}: damaged: {name} has {found}, wanted {sums}")


def _record(delta: Path) -> dict[str, Any]:
    """Reads `delta.json`; `crc32` is the checksum of the rest, written with sorted keys and no spaces."""
    try:
        content = json.loads((delta / "delta.json").read_bytes())
        expected = content.pop("crc32")
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        if expected == zlib.crc32(text.encode("utf-8", "surrogatepass")) and content["format"] == 1:
            return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{delta.name}: damaged: delta.json: {type(error).__name__}: {error}") from error
    raise Refused(f"{delta.name}: damaged: delta.json does not match its checksum, or has another format")


def _sums(path: Path) -> dict[str, int]:
    crc = size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}


class Reloader:
    """Keeps a model up to date with a folder of exports.

    Args:
      exports: the folder. Exports have numbers as names; the largest is the newest. Deltas are in `deltas` in it.
      poll_s: seconds between two looks at the folder.
    """

    def __init__(self, exports: Path, poll_s: float) -> None:
        self._exports, self._poll_s = exports, poll_s
        self.lock = SharedLock()
        self.refused: dict[str, str] = {}  # what is refused now: name of the folder -> why
        self._stopped = threading.Event()
        while (newest := self._newest()) is None:
            _log.info("waiting for an export in %s", exports)
            self._stopped.wait(poll_s)
        self.model = Model(newest)  # guarded by lock
        _log.info("loaded %s", newest)

    def run(self) -> None:
        """Looks for exports and deltas until `stop`."""
        while not self._stopped.wait(self._poll_s):
            try:
                self.look()
            except Exception:  # serving continues
                _log.exception("the look at %s failed", self._exports)

    def stop(self) -> None:
        """Ends `run`."""
        self._stopped.set()

    def look(self) -> None:
        """Loads a newer export, if there is one, and applies all deltas that are there."""
        newest = self._newest()
        if newest is not None and int(newest.name) > int(self.model.export):
            try:
                self._load(newest)
            except Exception as error:  # the model that is served may still get deltas
                self._refuse(newest.name, f"{newest.name}: cannot be loaded: {type(error).__name__}: {error}")
        with contextlib.suppress(Refused):
            while self._apply_next():
                pass

    def _newest(self) -> Path | None:
        found = [path for path in self._exports.glob("*") if re.fullmatch("[0-9]+", path.name)]
        return max(found, key=lambda path: int(path.name), default=None)

    def _load(self, export: Path) -> None:
        model = Model(export)
        with self.lock.alone():
            model, self.model = self.model, model
        model.close()  # no request uses it any more
        self.refused.clear()
        _log.info("loaded %s", export)

    def _apply_next(self) -> bool:
        """Applies the next delta; returns whether it was there. Raises Refused, after it was logged."""
        model = self.model
        delta = self._exports / "deltas" / f"{model.export}-{model.sequence + 1:06d}"
        try:
            if not delta.is_dir():
                later = sorted(path.name for path in delta.parent.glob(f"{model.export}-*") if path.name > delta.name)
                if later:
                    raise Refused(f"{delta.name}: missing, and {later[0]} is there")
                return False
            check(delta, model)  # this also brings the files into memory, so that requests wait less
            with self.lock.alone():
                model.apply(delta)
        except Refused as refused:
            self._refuse(delta.name, str(refused))
            raise
        self.refused.pop(delta.name, None)
        _log.info("applied %s: version %d", delta.name, model.version)
        return True

    def _refuse(self, name: str, why: str) -> None:
        """Keeps why a folder is refused; logs it the first time."""
        if self.refused.get(name) != why:
            _log.warning("refused %s", why)
        self.refused[name] = why


class BadRequest(Exception):
    """A request that gets an error as its answer, after which the connection is closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """Answers one request. The server has the reloader."""

    protocol_version = "HTTP/1.1"
    # Seconds in which a client must send the next bytes of its headers, all of a body, and all that nobody reads.
    timeout = 30.0
    server: Server

    def finish(self) -> None:
        """Ends the connection so that the client gets its last answer.

        Many clients send all of a body before they read. If a connection is closed with unread bytes, the system resets
        it, and such a client gets an error instead of its answer.
        """
        super().finish()
        left, deadline = _DRAINED_BYTES, time.monotonic() + self.timeout
        with contextlib.suppress(OSError):  # the client has gone, or is too slow
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (seconds := deadline - time.monotonic()) > 0:
                self.connection.settimeout(min(seconds, _DRAIN_SECONDS))
                part = self.connection.recv(min(left, 1 << 16))
                if not part:
                    break
                left -= len(part)

    def do_GET(self) -> None:
        """Answers which version is served."""
        if _may_have_body(self.headers):
            self.close_connection = True  # nobody reads the body, which must not count as the next request
        reloader = self.server.reloader
        with reloader.lock.shared():
            model = reloader.model
            version = model.version
            state = {"export": model.export, "sequence": model.sequence, "version": version}
        self._answer(200, {**state, "refused": dict(reloader.refused)}, version)

    def do_POST(self) -> None:
        """Answers a prediction."""
        reloader = self.server.reloader
        try:
            inputs = json.loads(self._body(), object_hook=_with_bytes)["inputs"]
            with reloader.lock.shared():
                version = reloader.model.version
                outputs = reloader.model.predict(inputs)
            listed = {name: _listed(value) for name, value in outputs.items()}
        except BadRequest as error:
            self.close_connection = True
            self._answer(error.status, {"error": str(error)}, 0)
        except _WRONG_INPUTS as error:
            self._answer(400, {"error": f"{type(error).__name__}: {error}"}, 0)
        except Exception as error:  # the client gets an answer, and the other connections are served
            _log.exception("a prediction failed")
            self._answer(500, {"error": f"{type(error).__name__}: {error}"}, 0)
        else:
            self._answer(200, {"outputs": listed}, version)

    def _body(self) -> bytes:
        """Returns the body of the request, which is as long as its header says.

        Raises:
          BadRequest: the header says no length or one too large, or the body does not come in time.
        """
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or not lengths:
            raise BadRequest(411, "the request has no Content-Length, or a Transfer-Encoding")
        if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0].strip()):
            raise BadRequest(400, f"Content-Length is {', '.join(lengths)[:100]!r}, wanted one number of bytes")
        if int(lengths[0]) > _MOST_BYTES:
            raise BadRequest(413, f"Content-Length is {int(lengths[0])}, wanted at most {_MOST_BYTES}")
        parts, left, deadline = [], int(lengths[0]), time.monotonic() + self.timeout
        try:
            while left:
                self.connection.settimeout(max(0.001, deadline - time.monotonic()))
                parts.append(self.rfile.read1(left))
                left -= len(parts[-1])
                if not parts[-1]:
                    raise BadRequest(400, f"the body ends {left} bytes before its Content-Length")
        except TimeoutError:
            raise BadRequest(408, f"{left} bytes of the body did not come within {self.timeout} s") from None
        finally:
            self.connection.settimeout(self.timeout)
        return b"".join(parts)

    def _answer(self, status: int, content: dict[str, Any], version: int) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Model-Version", str(version))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Logs no requests."""


def _may_have_body(headers: Message) -> bool:
    """Returns whether bytes may follow the headers of a request that has no body as a rule."""
    named = [(name.strip().lower(), value.strip()) for name, value in headers.items()]
    lengths = [value for name, value in named if name == "content-length"]
    # After a line without a colon, the parser takes the other headers for text.
    is_cut = bool(headers.get_payload())
    return is_cut or any(length != "0" for length in lengths) or any(name == "transfer-encoding" for name, _ in named)


def _with_bytes(value: dict[str, Any]) -> Any:
    """Returns the bytes that `{"b64": "..."}` stands for; other objects unchanged."""
    return base64.b64decode(value["b64"]) if value.keys() == {"b64"} else value


def _listed(value: np.ndarray) -> Any:
    """Returns an array as lists. Strings of bytes become text."""
    return np.char.decode(value.astype(bytes)).tolist() if value.dtype == object else value.tolist()


class Server(ThreadingHTTPServer):
    """A thread per connection, all of which use one reloader's model."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, reloader: Reloader) -> None:
        super().__init__(("localhost", port), Handler)
        self.reloader = reloader

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs in one line why a connection ended, such as a client that went before its answer."""
        _log.warning("a connection from %s ended: %r", client_address, sys.exc_info()[1])


def main() -> None:
    """Serves until the process is ended."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "--exports", type=Path, required=True, help="folder of exports, with deltas in its folder `deltas`"
    )
    flags.add_argument("--port", type=int, default=8501, help="0: a free one, which the log names (%(default)s)")
    flags.add_argument("--poll-seconds", type=float, default=1.0, help="between two looks at the folder (%(default)s)")
    given = flags.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    reloader = Reloader(given.exports, given.poll_seconds)
    server = Server(given.port, reloader)
    threading.Thread(target=reloader.run, daemon=True).start()
    _log.info("serving on port %d in process %d", server.server_port, os.getpid())
    try:
        server.serve_forever()
    finally:
        reloader.stop()


if __name__ == "__main__":
    main()
