import threading

import pytest

from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.errors import ComputeJobError, TimeoutException, UnreachableError

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


_KEY = b"k" * 32


def test_errors_of_the_registry_are_raised_by_the_client(service, client, start):
    with pytest.raises(IndexError, match=r"within \[0..1\]: 2"):
        client.register_dispatcher(2, "grpc://a:1")
    client.register_dispatcher(0, "grpc://a:1")
    with pytest.raises(ValueError, match="different address grpc://a:1: grpc://a:2"):
        client.register_dispatcher(0, "grpc://a:2")
    with pytest.raises(TimeoutException, match=r"dispatcher 1 to register.*Timeout after 0.1 seconds\."):
        client.wait_for_dispatcher_registration(1, 0.1)
    with pytest.raises(ValueError, match="dispatcher_id is 'zero'"):
        client.register_worker_for_dispatcher("zero", 0)
    waiting = start(lambda: client.wait_for_dispatcher_worker_registration(0, 60))
    service.fail("rank 1 had no memory")
    assert isinstance(waiting.end(), ComputeJobError)
    with pytest.raises(ComputeJobError, match="rank 1 had no memory"):
        client.check()


def test_a_client_may_fail_the_job(client, start):
    waiting = start(lambda: client.wait_for_dispatcher_registration(0, 60))
    client.fail("worker 1: no port is free")
    client.fail("and then another")
    assert str(waiting.end()) == "the compute job has failed: worker 1: no port is free"


def test_a_service_that_has_ended_is_an_error(service, client, start, monkeypatch):
    addresses = service.addresses()
    has_asked, wait = threading.Event(), service._registry.wait_for_dispatcher
    monkeypatch.setattr(service._registry, "wait_for_dispatcher", lambda *args: (has_asked.set(), wait(*args))[1])
    waiting = start(lambda: client.wait_for_dispatcher_registration(0, 60))
    assert has_asked.wait(60)
    service.shutdown()
    service.shutdown()
    assert isinstance(waiting.end(), ComputeJobError)
    with pytest.raises(UnreachableError, match=f"is gone.*[Rr]efused|{service.get_port()}"):
        client.shutdown()
    with pytest.raises(UnreachableError, match="no compute service answered: .*refused"):
        ComputeClient(addresses, _KEY)
    with pytest.raises(UnreachableError, match="got no address"):
        ComputeClient({}, _KEY)


def test_the_first_address_that_answers_is_used(service):
    addresses = {"wrong": [("127.0.0.1", 1)], **service.addresses()}
    ComputeClient(addresses, _KEY).check()
