import collections
import dataclasses
import itertools
import logging
import threading
import time

import pytest
import tensorflow as tf

from lockstep._src.compat.horovod.data_service import addresses
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, TimeoutException, UnreachableError
from lockstep._src.compat.horovod.data_service.reading import send_to_data_service, tf_data_service
from lockstep._src.compat.horovod.data_service.service import ComputeService

_ELEMENTS = 40


def _counts(batches):
    """Returns how often each element comes."""
    if isinstance(batches, tf.data.Dataset):
        batches = batches.as_numpy_iterator()
    return collections.Counter(int(element) for batch in batches for element in batch)


def _dataset(elements=_ELEMENTS):
    return tf.data.Dataset.range(elements).map(lambda x: x * 3).batch(4)


def _each(times, elements=_ELEMENTS):
    return collections.Counter({3 * element: times for element in range(elements)})


@pytest.fixture(name="somewhere")
def _somewhere():
    """Returns a config without a job behind it."""
    return TfDataServiceConfig(2, 1, "compute", {"lo": [("127.0.0.1", 1)]}, b"k" * 32, 1)


def test_every_rank_gets_what_the_mode_promises(compute_job):
    config = compute_job(2).config()
    for rank in range(2):
        assert _counts(send_to_data_service(_dataset(), config, rank, 2)) == _each(1)
    whole = send_to_data_service(_dataset(), config, 1, 2, processing_mode="parallel_epochs")
    assert _counts(whole) == _each(2)


def test_ranks_that_reuse_a_dataset_share_its_elements(compute_job, start):
    config = compute_job(2).config()
    ranks = [
        start(lambda rank=rank: _counts(send_to_data_service(_dataset(), config, rank, 2, reuse_dataset=True)))
        for rank in range(2)
    ]
    first, second = (rank.end() for rank in ranks)
    assert first + second == _each(1)


def test_reused_datasets_are_distinguished_by_name(compute_job):
    config = compute_job(1).config()
    for name, elements in (("train", 12), ("validate", 8)):
        dataset = send_to_data_service(_dataset(elements), config, 0, reuse_dataset=True, job_name=name)
        assert _counts(dataset) == _each(1, elements)


def test_round_robin_gives_ranks_the_same_number_of_batches_and_none_twice(compute_job, start):
    job = compute_job(2)

    iterators = []

    def read(rank):
        # Infinite, because round robin requires it, and so long that no element comes twice in this test.
        dataset = tf.data.Dataset.range(4000).repeat().batch(4)
        shared = send_to_data_service(dataset, job.config(), rank, 2, reuse_dataset=True, round_robin=True)
        # Kept until the job has ended: TensorFlow 2.15 may hang when it deletes an iterator whose turn has not come.
        iterators.append(shared.as_numpy_iterator())
        return _counts(itertools.islice(iterators[-1], 10))

    ranks = [start(lambda rank=rank: read(rank)) for rank in range(2)]
    first, second = (rank.end() for rank in ranks)
    assert job.end() == [None, None]
    assert first.total() == second.total() == 40
    assert max((first + second).values()) == 1


def test_several_dispatchers_serve_a_rank_each(compute_job):
    config = compute_job(2, dispatchers=2).config()
    found = []
    for rank in range(2):
        with tf_data_service(config, rank) as address:
            found.append(address)
        assert _counts(send_to_data_service(_dataset(), config, rank, 2, "parallel_epochs")) == _each(1)
    assert len(set(found)) == 2
    host = addresses.own_address()
    assert all(address.startswith(f"grpc://{host}:") for address in found) and "localhost" not in str(found)
    with pytest.raises(ValueError, match="2 dispatchers, one for each training rank, but this is rank 2"):
        send_to_data_service(_dataset(), config, 2)


def _through(config, rank):
    """Reads all elements through a dispatcher of the training side."""
    with tf_data_service(config, rank) as address:
        dataset = _dataset().apply(tf.data.experimental.service.distribute("distributed_epoch", address))
        return _counts(dataset)


@pytest.mark.parametrize("dispatchers", [1, 2])
def test_dispatchers_on_the_training_side(compute_job, start, dispatchers):
    job = compute_job(2, dispatchers=dispatchers, side="training")
    config = job.config()
    ranks = [start(lambda rank=rank: _through(config, rank)) for rank in range(2)]
    assert [rank.end() for rank in ranks] == [_each(1), _each(1)]
    assert job.end() == [None, None]


def test_a_shared_dispatcher_of_the_training_side_stays_while_others_read(compute_job, start):
    config = compute_job(1, side="training").config()
    released = []
    other_is_in = threading.Event()

    def lead():
        with tf_data_service(config, 0):
            other_is_in.wait(60)
        released.append(time.monotonic())

    first = start(lead)
    with tf_data_service(config, 1) as address:
        other_is_in.set()
        time.sleep(0.3)
        assert not released
        dataset = _dataset().apply(tf.data.experimental.service.distribute("distributed_epoch", address))
        assert _counts(dataset) == _each(1)
    first.end()
    assert released


def test_send_to_data_service_needs_dispatchers_of_the_compute_side():
    config = TfDataServiceConfig(1, 1, "training", {}, b"k" * 32)
    with pytest.raises(
        RuntimeError, match="training side dispatcher not supported, use tf_data_service context manager instead"
    ):
        send_to_data_service(_dataset(), config, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"processing_mode": "all"}, "processing_mode is 'all', wanted distributed_epoch, parallel_epochs"),
        ({"round_robin": True}, "round_robin needs reuse_dataset"),
        ({"round_robin": True, "reuse_dataset": True, "size": None}, "round_robin needs size"),
        ({"rank": 2}, r"rank is 2, wanted 0 to size - 1 \(1\)"),
        ({"size": 3}, "2 dispatchers, one for each training rank, but this is rank 0 of 3"),
    ],
)
def test_wrong_arguments_are_refused_before_any_request(somewhere, arguments, said):
    with pytest.raises(ValueError, match=said):
        send_to_data_service(_dataset(), somewhere, **{"rank": 0, "size": 2, **arguments})


def test_a_compute_job_that_fails_while_it_is_read_is_reported(caplog):
    key = b"k" * 32
    service = ComputeService(1, 1, key)
    config = TfDataServiceConfig(1, 1, "compute", service.addresses(), key, 60)
    client = config.compute_client()
    client.register_dispatcher(0, "grpc://127.0.0.1:1")
    client.register_worker_for_dispatcher(0, 0)
    with caplog.at_level(logging.ERROR, "lockstep"), tf_data_service(config, 0):
        service.fail("compute worker 3 is gone")
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.05)
    service.shutdown()
    assert "data service: the compute job has failed: compute worker 3 is gone" in caplog.text


def test_a_job_that_has_ended_is_an_error(somewhere):
    with pytest.raises(UnreachableError, match="no compute service answered: 127.0.0.1:1"):
        send_to_data_service(_dataset(), somewhere, 0, 2)


def test_a_compute_job_that_does_not_start_or_fails_is_an_error(start):
    key = b"k" * 32
    service = ComputeService(1, 1, key)
    try:
        config = TfDataServiceConfig(1, 1, "compute", service.addresses(), key, 1)
        with pytest.raises(TimeoutException, match="dispatcher 0 to register"):
            send_to_data_service(_dataset(), config, 0)
        patient = dataclasses.replace(config, timeout=100)
        waiting = start(lambda: send_to_data_service(_dataset(), patient, 0))
        service.fail("rank 0 had no memory")
        assert isinstance(waiting.end(), ComputeJobError)
    finally:
        service.shutdown()


@pytest.mark.parametrize("side", ["compute", "training"])
def test_a_job_ends_in_time_where_an_endless_dataset_was_read(compute_job, side):
    job = compute_job(2, side=side, timeout=600)
    config = job.config()
    with tf_data_service(config, 0) as address:
        dataset = tf.data.Dataset.range(100).repeat().shuffle(50).batch(8)
        dataset = dataset.apply(tf.data.experimental.service.distribute("distributed_epoch", address))
        assert len(_counts(dataset.take(30))) <= 100
    assert job.end() == [None, None]
