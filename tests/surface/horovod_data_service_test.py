"""Horovod's data service as its documentation uses it: compute job and training job on this machine."""

import inspect
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

_ROOT = Path(__file__).parents[2] / "python" / "horovod"
sys.path.insert(0, str(_ROOT))

from horovod.runner.common.service.compute_service import ComputeClient, ComputeService  # noqa: E402
from horovod.runner.common.util import secret  # noqa: E402
from horovod.runner.common.util.timeout import TimeoutException  # noqa: E402
from horovod.runner.util.threads import in_thread  # noqa: E402
from horovod.tensorflow.data import compute_worker  # noqa: E402
from horovod.tensorflow.data.compute_service import (  # noqa: E402
    TfDataServiceConfig,
    compute_worker_fn,
    send_to_data_service,
    tf_data_service,
)

_DEADLINE_S = 240.0


def _parameters(function):
    return list(inspect.signature(function).parameters)


def test_names_and_parameters_are_horovods():
    assert _parameters(TfDataServiceConfig)[:6] == [
        "dispatchers",
        "workers_per_dispatcher",
        "dispatcher_side",
        "addresses",
        "key",
        "timeout",
    ]
    assert _parameters(send_to_data_service)[:7] == [
        "dataset",
        "compute_config",
        "rank",
        "size",
        "processing_mode",
        "reuse_dataset",
        "round_robin",
    ]
    assert _parameters(TfDataServiceConfig.read) == ["filename", "wait_for_file_creation"]
    assert _parameters(TfDataServiceConfig.compute_client) == ["self", "verbose"]
    assert _parameters(tf_data_service) == ["compute_config", "rank"]
    assert _parameters(compute_worker_fn) == ["compute_config"]
    assert _parameters(compute_worker.main) == ["dispatchers", "dispatcher_side", "configfile", "timeout"]
    assert _parameters(ComputeService) == ["dispatchers", "workers_per_dispatcher", "key", "nics"]
    assert _parameters(ComputeClient) == ["compute_addresses", "key", "verbose"]
    assert tf.data.Dataset.send_to_data_service is send_to_data_service
    assert len(secret.make_secret_key()) == 32


def test_a_service_is_used_by_its_client_as_horovods_own_tests_do():
    key = secret.make_secret_key()
    service = ComputeService(2, 1, key, nics=None)
    try:
        client = ComputeClient(service.addresses(), key, verbose=2)
        thread = in_thread(client.wait_for_shutdown, daemon=True)
        with pytest.raises(TimeoutException, match="Timed out waiting for dispatcher 0 to register"):
            client.wait_for_dispatcher_registration(0, timeout=0.1)
        client.shutdown()
        thread.join(120)
        assert not thread.is_alive()
    finally:
        service.shutdown()
    with pytest.raises(ValueError, match="wanted a tuple"):
        in_thread(print, args="one")


def test_threads_of_a_training_job_serve_as_compute_workers(tmp_path, monkeypatch):
    for name, value in (("HOROVOD_RANK", "0"), ("HOROVOD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    file = str(tmp_path / "compute.json")
    worker = in_thread(compute_worker.main, (1, "compute", file, 60))
    config = TfDataServiceConfig.read(file, wait_for_file_creation=True)
    dataset = tf.data.Dataset.range(64).batch(8).send_to_data_service(config, 0, 1)
    assert sorted(sum((batch.tolist() for batch in dataset.as_numpy_iterator()), [])) == list(range(64))
    config.compute_client(verbose=2).shutdown()
    worker.join(120)
    assert not worker.is_alive()


@pytest.mark.oldest
def test_the_documents_example(tmp_path):
    file = tmp_path / "compute.json"
    environment = {**os.environ, "HOROVOD_SIZE": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "horovod.tensorflow.data.compute_worker", "--timeout", "120", str(file)]
    processes = [subprocess.Popen(command, env={**environment, "HOROVOD_RANK": str(rank)}) for rank in range(2)]
    try:
        config = TfDataServiceConfig.read(str(file), wait_for_file_creation=True)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        dataset = (
            tf.data.Dataset.range(100)
            .map(lambda x: x + 1)
            .repeat()
            .shuffle(100)
            .batch(8)
            .send_to_data_service(config, 0, 2)
            .prefetch(tf.data.experimental.AUTOTUNE)
        )
        batches = list(dataset.take(20).as_numpy_iterator())
        assert {len(batch) for batch in batches} == {8}
        assert {element for batch in batches for element in batch.tolist()} <= set(range(1, 101))
        config.compute_client(verbose=2).shutdown()
        assert [process.wait(_DEADLINE_S) for process in processes] == [0, 0]
        assert not file.exists()
    finally:
        for process in processes:
            process.kill()
            process.wait()
