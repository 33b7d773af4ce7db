"""Fixtures for calls in threads, and for compute jobs whose processes are threads."""

import contextlib
import threading
from pathlib import Path

import pytest

from lockstep._src.compat.horovod.data_service import compute
from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.place import Place
from lockstep._src.compat.horovod.data_service.service import ComputeService

# Only guards against a hang: a busy machine takes its time to start a process with TensorFlow.
_DEADLINE_S = 300.0
_KEY = b"k" * 32


class Started:
    """A call in a thread of its own."""

    def __init__(self, call):
        self._outcome = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call):
        try:
            self._outcome.append(call())
        except Exception as error:
            self._outcome.append(error)

    @property
    def has_ended(self):
        """True if the call has returned or raised."""
        return bool(self._outcome)

    def end(self):
        """Waits for the call's end; returns its result, or the error that it raised."""
        self._thread.join(_DEADLINE_S)
        assert self._outcome, f"it has not ended within {_DEADLINE_S} s"
        return self._outcome[0]


class ComputeJob:
    """A compute job of `size` ranks in threads of this process."""

    def __init__(self, file: Path, size: int, dispatchers: int = 1, side: str = "compute", timeout: int = 240):
        request = compute.Request(dispatchers, side, file, timeout)
        self.file = file
        self.ranks = [
            Started(lambda rank=rank: compute.run(request, Place(rank, size, f"job of {file.name}")))
            for rank in range(size)
        ]

    def config(self):
        """Returns the config that the training job reads."""
        return TfDataServiceConfig.read(self.file, wait_for_file_creation=True)

    def end(self):
        """Shuts the job down if it still runs; returns the result or error of each rank."""
        with contextlib.suppress(Exception):
            TfDataServiceConfig.read(self.file).compute_client().shutdown()
        return [rank.end() for rank in self.ranks]


@pytest.fixture(name="start")
def _start():
    """Returns the class `Started`, which starts a call in a thread."""
    return Started


@pytest.fixture(name="compute_job")
def _compute_job(tmp_path):
    """Yields a function that starts compute jobs; ends them after the test."""
    jobs = []

    def start(size, **options):
        jobs.append(ComputeJob(tmp_path / f"compute{len(jobs)}.json", size, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture(name="service")
def _service():
    """Yields the registry's server, of two dispatchers with two workers each."""
    service = ComputeService(2, 2, _KEY)
    yield service
    service.shutdown()


@pytest.fixture(name="client")
def _client(service):
    """Returns a client of `service`."""
    return ComputeClient(service.addresses(), _KEY, verbose=2)
