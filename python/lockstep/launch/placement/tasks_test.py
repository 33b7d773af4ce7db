import json

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.placement.tasks import Tasks, tasks_of

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

CLUSTER = {"chief": ["10.0.0.1:8860"], "worker": ["10.0.0.2:8861"]}
ADDRESSES = ("10.0.0.1:8860", "10.0.0.2:8861")


def _tf_config(cluster: dict, role: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


@pytest.mark.parametrize("value", [None, "", "{}", '{"cluster": {}}'])
def test_without_a_cluster_the_job_is_this_launchers_workers(value):
    assert tasks_of(value) == Tasks()


def test_tasks_are_numbered_from_the_chief():
    assert tasks_of(_tf_config(CLUSTER, "chief", 0)) == Tasks(ADDRESSES, 0)
    assert tasks_of(_tf_config(CLUSTER, "worker", 0)) == Tasks(ADDRESSES, 1)


def test_without_a_chief_worker_0_is_first():
    addresses = ("a:1", "b:1", "[::1]:1")
    tasks = tasks_of(_tf_config({"worker": list(addresses)}, "worker", 2))
    assert tasks == Tasks(addresses, 2, has_chief=False)
    assert tasks.hosts == ("a", "b", "[::1]")


def test_the_sparse_form_is_read_in_the_order_of_its_indices():
    assert tasks_of(_tf_config({"worker": {"10": "a:3", "2": "a:2", "0": "a:1"}}, "worker", 1)).addresses == (
        "a:1",
        "a:2",
        "a:3",
    )


@pytest.mark.parametrize("role", ["evaluator", "ps"])
def test_evaluators_and_parameter_servers_stand_beside_the_job(role):
    cluster = {**CLUSTER, role: ["c:9"]}
    assert tasks_of(_tf_config(cluster, role, 0)).is_auxiliary
    trainer = tasks_of(_tf_config(cluster, "worker", 0))
    assert (trainer.is_auxiliary, trainer.addresses, trainer.index) == (False, ADDRESSES, 1)
    assert trainer.auxiliary == {role: ["c:9"]}
    assert trainer.ports == {8860, 8861, 9}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "not a cluster description"),
        ('{"cluster": {"chief": ["a:1"]}}', "not a cluster description"),
        ('{"cluster": ["a"], "task": {"type": "chief", "index": 0}}', "not a cluster description"),
        (_tf_config({"chief": "a:1"}, "chief", 0), "'a:1' is not a list"),
        (_tf_config(CLUSTER, "worker", 1), "task 'worker' 1 is not in the cluster"),
        (_tf_config(CLUSTER, "evaluator", 0), "task 'evaluator' 0 is not in the cluster"),
        (_tf_config({**CLUSTER, "master": ["c:1"]}, "master", 0), "task 'master' 0 is not in the cluster"),
        (_tf_config({"worker": ["a:1", "a:1"]}, "worker", 0), "2 tasks have the address a:1"),
        (_tf_config({"worker": ["a:1", "a"]}, "worker", 0), "address 'a'; wanted host:port"),
        (_tf_config({"worker": ["a:1", ":2"]}, "worker", 0), "address ':2'; wanted host:port"),
        (_tf_config({"worker": ["a:1"] * 65537}, "worker", 0), "TF_CONFIG: got 65537 workers, wanted at most 65536"),
        (_tf_config({"worker": ["a:1", "::1:2222"]}, "worker", 0), r"address '::1:2222'; wanted .* \[v6\]:port"),
    ],
)
def test_a_wrong_cluster_is_an_error(value, message):
    with pytest.raises(LaunchError, match=message):
        tasks_of(value)


def test_tasks_of_a_host_stand_together():
    assert Tasks(("a:1", "a:2", "b:1"), 2).by_host == [("a", 2), ("b", 1)]
    assert tasks_of(
        _tf_config({"chief": ["[::1]:2222"], "worker": ["[::1]:2223", "[fe80::1%eth0]:1"]}, "worker", 1)
    ).by_host == [
        ("[::1]", 2),
        ("[fe80::1%eth0]", 1),
    ]
    with pytest.raises(LaunchError, match=r"tasks of host a are not consecutive \(a:1, b:1, a:2\); wanted"):
        tasks_of(_tf_config({"worker": ["a:1", "b:1", "a:2"]}, "worker", 0))
