import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest

from lockstep._src.compat.horovod.data_service import compute
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, DataServiceError, TimeoutException
from lockstep._src.compat.horovod.data_service.place import Place

_PROGRAM = "from lockstep._src.compat.horovod.data_service import command; command.run('compute_worker')"
# Only guards against a hang: a busy machine takes its time to start a process with TensorFlow.
_DEADLINE_S = 240


def _process(rank, size, *arguments):
    """Starts a rank of a compute job, like a launcher."""
    environment = {**os.environ, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process):
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dispatchers": 2}, r"Number of processes \(3\) must be a multiple of number of dispatchers \(2\)\."),
        ({"dispatchers": 0}, "dispatchers is 0, wanted a whole number, at least 1"),
        ({"timeout": "soon"}, "timeout is 'soon'"),
        ({"dispatcher_side": "foo"}, "dispatcher side is 'foo', wanted compute or training"),
    ],
)
def test_all_ranks_refuse_impossible_requests_and_waiting_jobs_get_the_error(tmp_path, start, change, said):
    file = tmp_path / "compute.json"
    wanted = dataclasses.replace(compute.Request(1, "compute", file, 5), **change)
    reading = start(lambda: TfDataServiceConfig.read(file, wait_for_file_creation=True))
    time.sleep(0.15)
    for rank in range(3):
        with pytest.raises(ValueError, match=said):
            compute.run(wanted, Place(rank, 3))
    assert isinstance(reading.end(), ComputeJobError)
    with pytest.raises(ComputeJobError, match=said):
        TfDataServiceConfig.read(file)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        compute.run(compute.Request(1, "compute", tmp_path / "none" / "compute.json", 5), Place(0, 1))


def test_an_interface_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_NETWORK_INTERFACES", "nothere")
    with pytest.raises(ValueError, match="'nothere'"):
        compute.run(compute.Request(1, "compute", tmp_path / "compute.json", 5), Place(0, 1))


def test_the_file_of_a_job_that_runs_is_not_touched(compute_job):
    job = compute_job(1)
    before = job.config()
    with pytest.raises(DataServiceError, match="belongs to a running compute job"):
        compute.run(compute.Request(1, "compute", job.file, 5), Place(0, 1))
    with pytest.raises(ValueError):
        compute.run(compute.Request(2, "compute", job.file, 5), Place(0, 1))
    assert TfDataServiceConfig.read(job.file) == before
    assert job.end() == [None]
    assert not job.file.exists()


def test_a_rank_whose_rank_0_is_missing_reports_it(tmp_path):
    TfDataServiceConfig(1, 2, "compute", {"lo": [("127.0.0.1", 1)]}, b"k" * 32).write(tmp_path / "old.json")
    with pytest.raises(TimeoutException, match="rank 1: rank 0 has not written .*old.json within 1 s"):
        compute.run(compute.Request(1, "compute", tmp_path / "old.json", 1), Place(1, 2))


def test_a_job_without_one_of_its_workers_fails_in_time(tmp_path):
    file = tmp_path / "compute.json"
    with pytest.raises(ComputeJobError, match="workers for dispatcher 0 to register"):
        compute.run(compute.Request(1, "compute", file, 1), Place(0, 2))
    with pytest.raises(ComputeJobError, match="workers for dispatcher 0 to register"):
        TfDataServiceConfig.read(file)


def test_a_killed_worker_ends_the_job_and_training_gets_the_error(tmp_path, start):
    file = tmp_path / "compute.json"
    first = start(lambda: compute.run(compute.Request(1, "compute", file, _DEADLINE_S), Place(0, 2)))
    second = _process(1, 2, "--timeout", _DEADLINE_S, file)
    try:
        client = TfDataServiceConfig.read(file, wait_for_file_creation=True).compute_client()
        client.wait_for_dispatcher_worker_registration(0, _DEADLINE_S)
        waiting = start(client.wait_for_shutdown)
    finally:
        second.kill()
        _end(second)
    for error in (first.end(), waiting.end()):
        assert isinstance(error, ComputeJobError)
        assert str(error) == "the compute job has failed: compute worker 1 is gone"
    with pytest.raises(ComputeJobError, match="failed: compute worker 1 is gone"):
        TfDataServiceConfig.read(file)


def test_a_signal_ends_the_job_without_a_trace(tmp_path, start):
    file = tmp_path / "compute.json"
    first = _process(0, 2, "--timeout", _DEADLINE_S, file)
    try:
        second = start(lambda: compute.run(compute.Request(1, "compute", file, _DEADLINE_S), Place(1, 2)))
        found = TfDataServiceConfig.read(file, wait_for_file_creation=True)
        found.compute_client().wait_for_dispatcher_worker_registration(0, _DEADLINE_S)
        first.send_signal(signal.SIGTERM)
        code, output = first.wait(_DEADLINE_S), first.stderr.read()
    finally:
        first.kill()
        _end(first)
    assert code == 128 + signal.SIGTERM, output
    assert isinstance(second.end(), DataServiceError)
    assert list(tmp_path.iterdir()) == []
