import pytest

from lockstep.launch.places import Place, places

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
    assert place.variables()["LOCKSTEP_RANK"] == place.horovods()["HOROVOD_RANK"] == "2"
    assert place.variables()["LOCKSTEP_LOCAL_WORLD_SIZE"] == place.horovods()["HOROVOD_LOCAL_SIZE"] == "1"
    assert place.horovods()["HOROVOD_HOSTNAME"] == "b"
    assert (place.horovods()["HOROVOD_CROSS_RANK"], place.horovods()["HOROVOD_CROSS_SIZE"]) == ("1", "2")
