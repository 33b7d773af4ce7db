"""Kubeflow Trainer's variables of a pod."""

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.output import Console
from lockstep.launch.placement import plan
from lockstep.launch.placement.kubeflow import tasks_of_train_job
from lockstep.launch.placement.tasks import Tasks

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

POD = {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
}
SECRET = {"LOCKSTEP_SECRET": "b9" * 32, "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def _names_are_known(monkeypatch):
    monkeypatch.setattr(plan, "wait_for_name", lambda name, console, seconds: None)


# Promise (deploy/README.md): a pod finds its place in Kubeflow Trainer's variables.
def test_a_pod_finds_its_place():
    addresses = tuple(f"train-node-0-{i}.train:29500" for i in range(3))
    assert tasks_of_train_job(POD) == Tasks(addresses, 1, has_chief=False)


# Promise (deploy/README.md): a pod finds its place in Kubeflow Trainer's variables.
@pytest.mark.parametrize(("workers", "ranks"), [(None, ["2", "3"]), (1, ["1"])])
def test_workers_are_those_of_the_train_job_unless_a_number_is_given(workers, ranks):
    planned = plan.environments(workers, {**POD, **SECRET}, Console())
    assert [worker["LOCKSTEP_RANK"] for worker in planned] == ranks
    assert {worker["LOCKSTEP_WORLD_SIZE"] for worker in planned} == {str(3 * len(ranks))}
    assert {worker["LOCKSTEP_RENDEZVOUS"] for worker in planned} == {"train-node-0-0.train:29500"}


def test_gpus_decide_if_the_train_job_leaves_the_number_open():
    gpus = {**POD, **SECRET, "PET_NPROC_PER_NODE": "auto", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert [worker["LOCKSTEP_RANK"] for worker in plan.environments(None, gpus, Console())] == list("4567")


def test_one_pod_needs_no_secret():
    one = {**POD, "PET_NNODES": "1", "PET_NODE_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}
    planned = plan.environments(None, one, Console())
    assert [worker["LOCKSTEP_RANK"] for worker in planned] == ["0", "1"]


def test_tf_config_and_incomplete_variables_take_no_part():
    config = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
    assert len(plan.environments(None, {**POD, "TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": ""}, Console())) == 1
    assert len(plan.environments(None, {"PET_NNODES": "3", "CUDA_VISIBLE_DEVICES": ""}, Console())) == 1


def test_a_number_of_the_whole_job_is_refused_in_a_pod():
    with pytest.raises(LaunchError, match="-np 6: this launcher starts the workers of one of 3 tasks"):
        plan.check_alone(6, POD)


# Promise (deploy/README.md): a pod finds its place in Kubeflow Trainer's variables.
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PET_NNODES": "2:4"}, "PET_NNODES: got '2:4', wanted a number"),
        ({"PET_NODE_RANK": "3"}, "this is node 3 of 3"),
        ({"PET_NNODES": "99999"}, "PET_NNODES: got 99999 workers, wanted at most 65536"),
        (
            {"PET_MASTER_ADDR": "10.0.0.1"},
            "PET_MASTER_ADDR: got '10.0.0.1', wanted .* train-node-0-0.train; or set TF_CONFIG",
        ),
        ({"PET_MASTER_PORT": "any"}, "PET_MASTER_PORT: got 'any', wanted a number"),
    ],
)
def test_other_variables_are_refused(variables, message):
    with pytest.raises(LaunchError, match=message):
        tasks_of_train_job({**POD, **variables})
