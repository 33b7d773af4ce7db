import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from lockstep._src.compat.horovod.data_service import command, compute
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, DataServiceError
from lockstep._src.compat.horovod.data_service.reading import send_to_data_service
from lockstep.spark.compute import main
from lockstep.testing import fake_spark

_PROGRAM = """
from lockstep.testing import fake_spark
fake_spark.install(2)
from lockstep.spark.compute import run_command
run_command("compute_worker")
"""
_DEADLINE_S = 240


@pytest.fixture(name="spark")
def _spark(monkeypatch):
    return fake_spark.installer(monkeypatch)


def test_a_worker_runs_in_each_slot_until_training_ends_the_job(tmp_path, spark):
    context, file = spark(2), tmp_path / "compute.json"
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(main, 2, "compute", file, 20)
        config = TfDataServiceConfig.read(file, wait_for_file_creation=True)
        assert (config.dispatchers, config.workers_per_dispatcher) == (2, 1)
        dataset = send_to_data_service(tf.data.Dataset.range(64), config, 1, 2)
        assert sorted(dataset.as_numpy_iterator()) == list(range(64))
        config.compute_client().shutdown()
        # Horovod's program passes a list to sys.exit, which makes exit code 1 of it.
        assert job.result(_DEADLINE_S) is None
    assert context.is_stopped
    assert not file.exists()


def test_horovods_program_exits_with_0(tmp_path, spark, monkeypatch):
    spark(1)
    file, codes = tmp_path / "compute.json", []
    thread = threading.Thread(target=lambda: codes.append(command.execute("worker", [str(file)], main, "")))
    thread.start()
    TfDataServiceConfig.read(file, wait_for_file_creation=True).compute_client().shutdown()
    thread.join(_DEADLINE_S)
    assert codes == [0]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ((0, "compute", 5), "dispatchers is 0"),
        ((1, "foo", 5), "dispatcher side is 'foo'"),
        ((1, "compute", "soon"), "timeout is 'soon'"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts_and_reported(tmp_path, monkeypatch, wanted, said):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # importing it fails
    dispatchers, side, timeout = wanted
    with pytest.raises(ValueError, match=said):
        main(dispatchers, side, tmp_path / "compute.json", timeout)
    with pytest.raises(ComputeJobError, match=said):
        TfDataServiceConfig.read(tmp_path / "compute.json")


def test_slots_that_cannot_be_divided_among_the_dispatchers_are_refused(tmp_path, spark):
    context = spark(3)
    with pytest.raises(ValueError, match=r"Number of processes \(3\) must be a multiple .* dispatchers \(2\)"):
        main(2, "compute", tmp_path / "compute.json", 5)
    assert context.is_stopped


def test_a_worker_that_fails_is_the_jobs_failure(tmp_path, spark, monkeypatch):
    context, run_worker = spark(2), compute.run_worker

    def second_fails(config, rank):
        if rank == 1:
            raise OSError("no port is free")
        run_worker(config, rank)

    monkeypatch.setattr(compute, "run_worker", second_fails)
    with pytest.raises(DataServiceError, match="worker 1: no port is free"):
        # The other worker learns it at once: it does not wait until the timeout.
        main(1, "compute", tmp_path / "compute.json", 600)
    assert context.is_stopped
    with pytest.raises(ComputeJobError, match="worker 1: no port is free"):
        TfDataServiceConfig.read(tmp_path / "compute.json")


def test_a_job_that_spark_ends_fails_in_a_line(tmp_path, spark):
    context = spark(2)
    context.lost = threading.Event()
    context.lost.set()
    with pytest.raises(DataServiceError, match="^Spark has ended the job: the stage was cancelled$"):
        main(1, "compute", tmp_path / "compute.json", 5)


def test_a_missing_pyspark_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(DataServiceError, match="no pyspark here"):
        main(1, "compute", tmp_path / "compute.json", 5)


def test_a_signal_ends_the_job_without_a_trace(tmp_path):
    # Horovod's handler takes no arguments, so that a signal raises TypeError.
    file = tmp_path / "compute.json"
    driver = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "--timeout", "120", str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not file.exists():
            assert driver.poll() is None, driver.stderr.read()
            time.sleep(0.1)
        client = TfDataServiceConfig.read(file).compute_client()
        client.wait_for_dispatcher_worker_registration(0, 120)
        driver.send_signal(signal.SIGTERM)
        code, output = driver.wait(_DEADLINE_S), driver.stderr.read()
    finally:
        driver.kill()
        driver.wait()
        driver.stderr.close()
    assert code == 128 + signal.SIGTERM, output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []
