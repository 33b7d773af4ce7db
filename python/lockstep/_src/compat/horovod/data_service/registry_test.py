import pytest

from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, TimeoutException
from lockstep._src.compat.horovod.data_service.registry import Registry

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def _always():
    return True


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 1), "The number of dispatchers must be larger than 0: 0"),
        ((1, -2), "The number of workers per dispatcher must be larger than 0: -2"),
    ],
)
def test_numbers_are_positive(numbers, said):
    with pytest.raises(ValueError, match=said):
        Registry(*numbers)


@pytest.mark.parametrize("dispatcher_id", [-1, 2])
@pytest.mark.parametrize(
    "method, arguments",
    [
        ("register_dispatcher", ("grpc://a:1",)),
        ("wait_for_dispatcher", (0.1, _always)),
        ("register_worker", (0,)),
        ("wait_for_workers", (0.1, _always)),
        ("retire_dispatcher", ()),
        ("end_worker", (0,)),
        ("wait_until_stopped", (0.1, _always)),
        ("begin_use", (0,)),
        ("end_use", (0,)),
        ("wait_until_unused", (0.1, _always)),
    ],
)
def test_unknown_dispatcher_ids_are_refused(method, arguments, dispatcher_id):
    registry = Registry(2, 1)
    with pytest.raises(IndexError, match=rf"Dispatcher id must be within \[0..1\]: {dispatcher_id}"):
        getattr(registry, method)(dispatcher_id, *arguments)


def test_a_dispatcher_has_one_address():
    registry = Registry(1, 1)
    registry.register_dispatcher(0, "grpc://a:1")
    registry.register_dispatcher(0, "grpc://a:1")
    with pytest.raises(
        ValueError,
        match="Dispatcher with id 0 has already been registered under different address grpc://a:1: grpc://a:2",
    ):
        registry.register_dispatcher(0, "grpc://a:2")
    assert registry.wait_for_dispatcher(0, 0.1, _always) == "grpc://a:1"


def test_a_wait_for_a_dispatcher_returns_its_address_when_it_registers(start):
    registry = Registry(1, 1)
    waiting = start(lambda: registry.wait_for_dispatcher(0, 60, _always))
    registry.register_dispatcher(0, "grpc://a:1")
    assert waiting.end() == "grpc://a:1"


def test_missing_dispatchers_and_workers_are_named_in_time():
    registry = Registry(2, 2)
    with pytest.raises(TimeoutException) as raised:
        registry.wait_for_dispatcher(1, 0.1, _always)
    assert raised.value.message == (
        "Timed out waiting for dispatcher 1 to register. Try to find out what takes the dispatcher so long to register "
        "or increase timeout. Timeout after 0.1 seconds."
    )
    with pytest.raises(TimeoutException) as raised:
        registry.wait_for_workers(0, 0.1, _always)
    assert str(raised.value) == (
        "Timed out waiting for workers for dispatcher 0 to register. Try to find out what takes the workers so long to "
        "register or increase timeout. Timeout after 0.1 seconds."
    )


def test_workers_count_for_their_own_dispatcher_only_and_once():
    registry = Registry(2, 2)
    for worker in (0, 0, 1):
        with pytest.raises(TimeoutException):
            registry.wait_for_workers(0, 0, _always)
        registry.register_worker(0, worker)
    registry.wait_for_workers(0, 0, _always)
    with pytest.raises(TimeoutException):
        registry.wait_for_workers(1, 0, _always)


def test_a_dispatcher_stays_while_a_rank_uses_it(start):
    registry = Registry(1, 1)
    registry.wait_until_unused(0, 0, _always)
    registry.begin_use(0, 0)
    registry.begin_use(0, 1)
    registry.end_use(0, 0)
    with pytest.raises(TimeoutException, match="training ranks to leave dispatcher 0"):
        registry.wait_until_unused(0, 0.05, _always)
    waiting = start(lambda: registry.wait_until_unused(0, 60, _always))
    registry.end_use(0, 1)
    assert waiting.end() is None


def test_workers_stop_before_their_dispatcher_also_while_the_job_ends(start):
    registry = Registry(2, 2)
    for worker in (0, 1):
        registry.register_worker(0, worker)
    work = start(lambda: registry.wait_for_end_of_work(0, _always))
    other = start(lambda: registry.wait_for_end_of_work(1, _always))
    registry.retire_dispatcher(0)
    assert work.end() is False
    assert not other.has_ended
    registry.shutdown()
    assert other.end() is True
    registry.end_worker(0, 1)
    with pytest.raises(TimeoutException, match="workers for dispatcher 0 to stop"):
        registry.wait_until_stopped(0, 0.05, _always)
    registry.end_worker(0, 0)
    registry.wait_until_stopped(0, 0, _always)
    registry.wait_until_stopped(1, 0, _always)


def test_a_failure_reaches_all_present_and_later_waits(start):
    registry = Registry(1, 1)
    waits = [
        start(lambda: registry.wait_for_dispatcher(0, 60, _always)),
        start(lambda: registry.wait_for_workers(0, 60, _always)),
        start(lambda: registry.wait_for_shutdown(_always)),
    ]
    registry.fail("worker 3 is gone")
    registry.fail("and then another")
    for waiting in waits:
        assert str(waiting.end()) == "the compute job has failed: worker 3 is gone"
    with pytest.raises(ComputeJobError, match="worker 3"):
        registry.check()


def test_the_end_reaches_all_waits(start):
    registry = Registry(1, 1)
    waiting, working = (
        start(lambda: registry.wait_for_dispatcher(0, 60, _always)),
        start(lambda: registry.wait_for_shutdown(_always)),
    )
    registry.check()
    registry.shutdown()
    registry.fail("a worker that is late to end")
    assert "was shut down while a client waited for dispatcher 0" in str(waiting.end())
    assert working.end() is None
    with pytest.raises(ComputeJobError, match="was shut down"):
        registry.check()


def test_a_wait_ends_when_its_client_is_gone():
    registry = Registry(1, 1)
    with pytest.raises(ConnectionError):
        registry.wait_for_dispatcher(0, 600, lambda: False)
