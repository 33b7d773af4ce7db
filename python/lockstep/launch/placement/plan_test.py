"""The number of workers of a launcher, and the devices of each."""

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.placement import plan

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


def _devices(workers: int | None, granted: str | None, **options: bool) -> list[str | None]:
    environment = {} if granted is None else {"CUDA_VISIBLE_DEVICES": granted}
    planned = plan.environments(workers, environment, Console(), **options)
    return [worker.get("CUDA_VISIBLE_DEVICES") for worker in planned]


def test_there_is_a_worker_for_each_gpu_if_no_number_is_given():
    assert _devices(None, "3,5") == ["3", "5"]


def test_fewer_workers_take_the_first_gpus():
    assert _devices(1, "3,5") == ["3"]


def test_more_workers_than_gpus_are_refused():
    with pytest.raises(LaunchError, match="-n 3: only 2 GPUs are visible"):
        _devices(3, "3,5")


def test_several_workers_see_no_gpus_if_none_is_granted():
    assert _devices(2, "") == ["", ""]


def test_workers_that_choose_their_gpus_see_all_of_them():
    assert _devices(2, "3,5", assigns_gpus=False) == ["3,5", "3,5"]


def test_ranks_and_the_size_of_the_job_are_in_the_environments():
    planned = plan.environments(3, {"CUDA_VISIBLE_DEVICES": "", "MINE": "1"}, Console())
    assert [worker["LOCKSTEP_RANK"] for worker in planned] == ["0", "1", "2"]
    assert {worker["LOCKSTEP_WORLD_SIZE"] for worker in planned} == {"3"}
    assert {worker["MINE"] for worker in planned} == {"1"}


def test_an_allocation_of_several_hosts_is_no_job_of_this_host_alone():
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "1(x2)"}
    with pytest.raises(LaunchError, match=r"Slurm has given 2 hosts \(a, \.\.\.\)"):
        plan.environments(2, environment, Console())


def test_a_number_of_the_whole_job_is_refused_for_a_task_of_several():
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    with pytest.raises(LaunchError, match="one of 2 tasks"):
        plan.check_alone(4, {"TF_CONFIG": config})
    plan.check_alone(4, {})
