"""The example of incremental delivery: a job, a delivery and a server, each a program of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "serving"
DEADLINE_S = 120.0
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


@contextlib.contextmanager
def started(folder: Path, name: str, *command: object) -> Iterator[Path]:
    """Runs a program in a process group of its own, and ends the group after the block. Yields the file of its log."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def until(found: Callable[[], Any], logs: list[Path]) -> Any:
    """Waits for a result that is true, and returns it."""
    deadline = time.monotonic() + DEADLINE_S
    while not (result := found()):
        assert time.monotonic() < deadline, "\n".join(log.read_text() for log in logs)
        time.sleep(0.1)
    return result


def call(port: int, method: str, path: str, body: str | None = None) -> dict[str, Any]:
    """Returns the answer to a request."""
    with contextlib.closing(http.client.HTTPConnection("localhost", port, timeout=60)) as connection:
        connection.request(method, path, body)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return json.loads(response.read())


def test_a_server_follows_a_job(tmp_path):
    job = ["-m", "lockstep.launch", "-n", 2, sys.executable, EXAMPLE / "train.py", "--checkpoints", "checkpoints"]
    delivery = [EXAMPLE / "deliver.py", "--checkpoints", "checkpoints", "--exports", "exports", "--poll-seconds", 0.2]
    server = [EXAMPLE / "server.py", "--exports", "exports", "--port", 0, "--poll-seconds", 0.2]
    with (
        started(tmp_path, "job", *job, "--increment-seconds", 0.5) as job_log,
        started(tmp_path, "delivery", *delivery) as delivery_log,
        started(tmp_path, "server", *server) as server_log,
    ):
        logs = [job_log, delivery_log, server_log]
        port = int(until(lambda: re.search(r"serving on port (\d+)", server_log.read_text()), logs)[1])

        def scores() -> list[float]:
            request = json.dumps({"inputs": {"user": ["10", "11", "nobody"], "item": [5, 6, 7]}})
            return call(port, "POST", "/v1/models/model:predict", request)["outputs"]["score"]

        seen = {tuple(scores())}
        until(lambda: call(port, "GET", "/v1/models/model")["sequence"] >= 3, logs)
        seen.add(tuple(scores()))
        assert len(seen) == 2 and all(0 < score < 1 for one in seen for score in one)
        assert call(port, "GET", "/v1/models/model")["refused"] == {}
