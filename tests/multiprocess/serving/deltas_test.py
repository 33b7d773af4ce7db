"""A job of two workers trains, and a server of stock TensorFlow takes each of its increments as a delta, under load."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import lockstep
from lockstep._src.saving.chain import Chain
from lockstep.testing import call_workers
from tests.multiprocess.serving import deltas_worker as worker

SERVER = Path(__file__).resolve().parents[3] / "examples" / "serving" / "server.py"
LOAD_THREADS = 3
DEADLINE_S = 120.0


def until(found: Callable[[], Any], what: str) -> Any:
    """Waits for a result that is true, and returns it."""
    deadline = time.monotonic() + DEADLINE_S
    while not (result := found()):
        assert time.monotonic() < deadline, f"no {what} after {DEADLINE_S} s"
        time.sleep(0.02)
    return result


class Server:
    """The server program in a process of its own."""

    def __init__(self, port: int, log: Path) -> None:
        self.port, self._log = port, log

    @classmethod
    @contextlib.contextmanager
    def started(cls, exports: Path, log: Path) -> Iterator[Server]:
        """Starts the program; ends its process after the block."""
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [sys.executable, str(SERVER), "--exports", str(exports), "--port", "0", "--poll-seconds", "0.05"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**environ, "CUDA_VISIBLE_DEVICES": ""}
            )
        try:
            port = until(lambda: re.search(r"serving on port (\d+)", log.read_text()), f"server ({log.read_text()})")
            yield cls(int(port[1]), log)
            assert process.poll() is None, log.read_text()
        finally:
            process.kill()
            process.wait(30)

    def connected(self) -> http.client.HTTPConnection:
        """Returns a connection."""
        return http.client.HTTPConnection("localhost", self.port, timeout=60)

    def state(self) -> dict[str, Any]:
        """Returns what it serves, and what it refuses."""
        with contextlib.closing(self.connected()) as connection:
            connection.request("GET", "/v1/models/model")
            return json.loads(connection.getresponse().read())

    def reached(self, sequence: int) -> int:
        """Waits for a delta of this number; returns the version that is then served."""
        return until(lambda: (s := self.state())["sequence"] == sequence and s, f"delta {sequence}")["version"]

    def log(self) -> str:
        """Returns the text of its log."""
        return self._log.read_text()


@dataclasses.dataclass(frozen=True)
class Answer:
    """A server's answer to the request `batch`."""

    batch: int
    status: int
    version: int
    scores: list[float]


def asked(connection: http.client.HTTPConnection, batch: int) -> Answer:
    """Sends a request, and returns the answer to it."""
    body = json.dumps({"inputs": {"ids": worker.REQUESTS[batch].tolist()}})
    connection.request("POST", "/v1/models/model:predict", body)
    response = connection.getresponse()
    content = json.loads(response.read())
    assert response.status == 200, content
    return Answer(batch, response.status, int(response.headers["X-Model-Version"]), content["outputs"]["score"])


@contextlib.contextmanager
def load(server: Server) -> Iterator[list[Answer]]:
    """Sends requests from several threads during the block. The list of answers is complete after it.

    A request that fails is an error at the end of the block.
    """
    stopped = threading.Event()
    answers: list[Answer] = []

    def send(first: int) -> None:
        with contextlib.closing(server.connected()) as connection:
            while not stopped.is_set():
                for batch in range(len(worker.REQUESTS)):
                    answers.append(asked(connection, (first + batch) % len(worker.REQUESTS)))

    with concurrent.futures.ThreadPoolExecutor(LOAD_THREADS) as threads:
        sent = [threads.submit(send, i) for i in range(LOAD_THREADS)]
        try:
            yield answers
        finally:
            stopped.set()
        for one in sent:
            one.result(DEADLINE_S)


@dataclasses.dataclass(frozen=True)
class Delivery:
    """A delivery of a job to a server.

    Attributes:
      exports: the folder of the export and its deltas.
      versions: the version of the export and of each delta, in order.
      after: the answers to all requests right after the export was loaded and after each delta.
      during: the answers to the load meanwhile.
      full: the scores of full exports: at the export's checkpoint, and after each increment.
      log: the server's log.
    """

    exports: Path
    versions: list[int]
    after: list[list[Answer]]
    during: list[Answer]
    full: list[list[list[float]]]
    log: str


def deliver(folder: Path, count: int) -> Delivery:
    """Trains `count` steps on two workers while a server takes each increment."""
    job, exports, done = folder / "job", folder / "exports", folder / "done"
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        training = thread.submit(
            call_workers, worker.train, 2, str(job), count, str(done), DEADLINE_S * 3, timeout_s=DEADLINE_S * 3
        )
        try:
            base = until(lambda: training.done() and training.result() or tf.train.latest_checkpoint(job), "checkpoint")
            since = lockstep.train.export(exports, base, worker.signature, updatable=True)
            with Server.started(exports, folder / "log") as server:
                versions, after = [server.reached(0)], [all_answers(server)]
                with load(server) as during:
                    for i in range(1, count + 1):
                        until(
                            lambda i=i: len((Chain.read(str(job)) or Chain("", [])).increments) >= i, f"increment {i}"
                        )
                        since = lockstep.export_delta(since, Chain.read(str(job)).prefixes(str(job))[i - 1])
                        versions.append(server.reached(i))
                        after.append(all_answers(server))
                log = server.log()
            shutil.copytree(job, folder / "kept")  # the end of the session begins another chain
        finally:
            done.touch()
        training.result(DEADLINE_S)
    (full,) = call_workers(worker.full_exports, 1, str(folder / "kept"), str(folder / "scratch"), timeout_s=DEADLINE_S)
    return Delivery(exports, versions, after, during, full, log)


def all_answers(server: Server) -> list[Answer]:
    """Returns the answers to all requests."""
    with contextlib.closing(server.connected()) as connection:
        return [asked(connection, batch) for batch in range(len(worker.REQUESTS))]


@pytest.fixture(scope="module")
def delivery(tmp_path_factory) -> Delivery:
    """Returns a delivery of five deltas."""
    return deliver(tmp_path_factory.mktemp("delivery"), 5)


def check(delivery: Delivery, count: int) -> None:
    """Asserts that the server had, after each delta, the scores of a full export, and never others."""
    assert len(set(delivery.versions)) == len(delivery.full) == count + 1
    for version, answers, full in zip(delivery.versions, delivery.after, delivery.full, strict=True):
        assert [answer.version for answer in answers] == [version] * len(answers)
        assert [answer.scores for answer in answers] == full
    for earlier, later in zip(delivery.full, delivery.full[1:], strict=False):
        assert earlier != later
    by_version = dict(zip(delivery.versions, delivery.full, strict=True))
    assert len(delivery.during) > count * LOAD_THREADS
    for answer in delivery.during:
        assert answer.status == 200
        assert answer.scores == by_version[answer.version][answer.batch]
    assert len({answer.version for answer in delivery.during}) > count // 2
    removed = {"users": 0, "words": 0}
    for delta in sorted((delivery.exports / "deltas").iterdir()):
        reader = tf.train.load_checkpoint(f"{delta}/delta")
        removed = {name: n + len(reader.get_tensor(f"{name}-removed-keys")) for name, n in removed.items()}
    assert min(removed.values()) > 0
    assert "refused" not in delivery.log and "Traceback" not in delivery.log


# Promise (deltas.md): a server under load has a full export's scores after each delta; damaged, missing and late deltas
# are refused.
def test_a_server_under_load_has_a_full_exports_scores_after_each_delta(delivery):
    check(delivery, 5)


@pytest.mark.long
def test_fifty_deltas_under_load(tmp_path):
    check(deliver(tmp_path, 50), 50)


def test_a_newer_export_is_loaded_under_load(delivery, tmp_path):
    exports = tmp_path / "exports"
    shutil.copytree(delivery.exports, exports)
    (old,) = [path for path in exports.iterdir() if path.name.isdigit()]
    newer = str(int(old.name) + 1)
    with Server.started(exports, tmp_path / "log") as server, load(server) as answers:
        assert server.reached(5) == delivery.versions[5]
        shutil.copytree(old, tmp_path / "staged")
        os.rename(tmp_path / "staged", exports / newer)
        until(lambda: server.state()["export"] == newer, "newer export")
        assert server.reached(0) == delivery.versions[0]
        assert [answer.scores for answer in all_answers(server)] == delivery.full[0]
    assert {answer.status for answer in answers} == {200}


def test_missing_damaged_and_exchanged_deltas_are_refused_by_name(delivery, tmp_path):
    exports = tmp_path / "exports"
    shutil.copytree(delivery.exports, exports, ignore=shutil.ignore_patterns("deltas"))
    good = sorted((delivery.exports / "deltas").iterdir())
    deltas = [exports / "deltas" / path.name for path in good]

    def refusal(server: Server, text: str) -> None:
        until(lambda: re.search(text, server.state()["refused"].get(deltas[0].name, "")), f"refusal: {text}")
        assert re.search(f"refused {text}", server.log())
        state = server.state()
        assert (state["sequence"], state["version"]) == (0, delivery.versions[0])

    def damaged(name: str, byte: int) -> None:
        staged = Path(shutil.copytree(good[0], tmp_path / "staged"))
        content = bytearray((staged / name).read_bytes())
        content[byte] ^= 1
        (staged / name).write_bytes(content)
        replace(staged)

    def replace(staged: Path) -> None:
        shutil.rmtree(deltas[0], ignore_errors=True)
        os.rename(staged, deltas[0])

    first = re.escape(deltas[0].name)
    with Server.started(exports, tmp_path / "log") as server, load(server) as answers:
        shutil.copytree(good[1], deltas[1])
        refusal(server, f"{first}: missing, and {re.escape(deltas[1].name)} is there")
        damaged("delta.data-00000-of-00001", 100)
        refusal(server, f"{first}: damaged: delta.data-00000-of-00001 has")
        damaged("delta.json", 30)
        refusal(server, f"{first}: damaged: delta.json")
        staged = Path(shutil.copytree(good[0], tmp_path / "staged"))
        os.remove(staged / "delta.index")
        replace(staged)
        refusal(server, f"{first}: damaged: delta.index: No such file")
        replace(Path(shutil.copytree(good[2], tmp_path / "staged")))
        refusal(server, f"{first}: out of order: it is number 3 on export")
        # The right one: the server continues.
        replace(Path(shutil.copytree(good[0], tmp_path / "staged")))
        assert server.reached(2) == delivery.versions[2]
        assert server.state()["refused"] == {}
        assert [answer.scores for answer in all_answers(server)] == delivery.full[2]
    by_version = dict(zip(delivery.versions, delivery.full, strict=True))
    assert all(answer.scores == by_version[answer.version][answer.batch] for answer in answers)
