import random

import pytest

from lockstep.launch.base.places import Place, places

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_ranks_run_over_hosts_and_their_workers():
    assert places([("a", 2), ("b", 1)]) == [
        Place(0, 3, 0, 2, 0, 2, "a"),
        Place(1, 3, 1, 2, 0, 1, "a"),
        Place(2, 3, 0, 1, 1, 2, "b"),
    ]


def test_the_cross_rank_counts_the_hosts_that_have_a_worker_of_this_local_rank():
    found = places([("a", 1), ("b", 3), ("c", 2)])
    assert [(p.local_rank, p.cross_rank, p.cross_size) for p in found] == [
        (0, 0, 3),
        (0, 1, 3),
        (1, 0, 2),
        (2, 0, 1),
        (0, 2, 3),
        (1, 1, 2),
    ]


def test_a_place_is_told_under_both_names():
    place = places([("a", 2), ("b", 1)])[2]
    assert place.variables()["LOCKSTEP_RANK"] == place.horovod_variables()["HOROVOD_RANK"] == "2"
    assert place.variables()["LOCKSTEP_LOCAL_WORLD_SIZE"] == place.horovod_variables()["HOROVOD_LOCAL_SIZE"] == "1"
    assert place.horovod_variables()["HOROVOD_HOSTNAME"] == "b"
    assert (place.horovod_variables()["HOROVOD_CROSS_RANK"], place.horovod_variables()["HOROVOD_CROSS_SIZE"]) == (
        "1",
        "2",
    )


def test_cross_places_are_those_that_counting_each_finds():
    draw = random.Random(4)
    for _ in range(50):
        hosts = [(f"host{i}", draw.randrange(5)) for i in range(draw.randrange(8))]
        for found in places(hosts):
            having = [host for host, slots in hosts if slots > found.local_rank]
            assert (found.cross_rank, found.cross_size) == (having.index(found.host), len(having))


@pytest.mark.timeout(240)  # It takes seconds; an hour if each worker looked at each host.
def test_as_many_hosts_as_there_may_be_have_their_places_at_once():
    found = places([(f"host{i}", 2) for i in range(32768)])
    assert found[-1] == Place(65535, 65536, 1, 2, 32767, 32768, "host32767")
