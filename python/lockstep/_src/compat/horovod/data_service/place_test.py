import pytest

from lockstep._src.compat.horovod.data_service.place import Place, own_place

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def test_horovods_variables_come_before_the_launchers():
    ours = {"LOCKSTEP_RANK": "1", "LOCKSTEP_WORLD_SIZE": "2"}
    assert own_place(ours) == Place(1, 2)
    assert own_place({**ours, "HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"}) == Place(3, 4)


def test_without_a_launcher_the_process_is_alone():
    assert own_place({}) == Place(0, 1)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HOROVOD_RANK": "1"}, "HOROVOD_RANK is '1' and HOROVOD_SIZE None"),
        ({"LOCKSTEP_RANK": "x", "LOCKSTEP_WORLD_SIZE": "2"}, "LOCKSTEP_RANK is 'x'"),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2"}, r"HOROVOD_RANK is 2, wanted 0 to HOROVOD_SIZE - 1 \(1\)"),
    ],
)
def test_wrong_variables_are_named(environment, said):
    with pytest.raises(ValueError, match=said):
        own_place(environment)


def test_ids_of_jobs_differ_and_do_not_reveal_the_secret():
    job = own_place({"LOCKSTEP_SECRET": "s1", "LOCKSTEP_RENDEZVOUS": "h:1"}).job
    assert (
        job
        == own_place(
            {"LOCKSTEP_SECRET": "s1", "LOCKSTEP_RENDEZVOUS": "h:1", "HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}
        ).job
    )
    assert job != own_place({"LOCKSTEP_SECRET": "s2", "LOCKSTEP_RENDEZVOUS": "h:1"}).job
    assert job != own_place({"LOCKSTEP_SECRET": "s1", "LOCKSTEP_RENDEZVOUS": "h:2"}).job
    assert job and "s1" not in job
