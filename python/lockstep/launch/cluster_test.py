import json
import os
import socket

import pytest

from lockstep.launch.cluster import (
    Machines,
    available_cpus,
    check_reachable,
    free_ports,
    machines_of,
    threads_per_worker,
    worker_environments,
)
from lockstep.launch.errors import LaunchError

TWO_MACHINES = {"chief": ["10.0.0.1:8860"], "worker": ["10.0.0.2:8861"]}


def _tf_config(cluster: dict, role: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


@pytest.mark.parametrize("value", [None, "", "{}", '{"cluster": {}}'])
def test_without_a_cluster_the_job_is_this_machine(value):
    assert machines_of(value) == Machines()


def test_machines_are_numbered_from_the_chief():
    assert machines_of(_tf_config(TWO_MACHINES, "chief", 0)) == Machines(("10.0.0.1", "10.0.0.2"), 0)
    assert machines_of(_tf_config(TWO_MACHINES, "worker", 0)) == Machines(("10.0.0.1", "10.0.0.2"), 1)


def test_without_a_chief_worker_0_is_first():
    cluster = {"worker": ["a:1", "b:1", "[::1]:1"]}
    assert machines_of(_tf_config(cluster, "worker", 2)) == Machines(("a", "b", "[::1]"), 2, has_chief=False)


def test_an_evaluator_stands_beside_the_job():
    assert machines_of(_tf_config({**TWO_MACHINES, "evaluator": ["c:1"]}, "evaluator", 0)).evaluator


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "no cluster description"),
        ('{"cluster": {"chief": ["a:1"]}}', "no cluster description"),
        ('{"cluster": ["a"], "task": {"type": "chief", "index": 0}}', "no cluster description"),
        (_tf_config(TWO_MACHINES, "worker", 1), "task 'worker' 1 is not in the cluster"),
        (_tf_config(TWO_MACHINES, "master", 0), "task 'master' 0 is not in the cluster"),
        (_tf_config({**TWO_MACHINES, "ps": ["c:1"]}, "worker", 0), "parameter servers"),
    ],
)
def test_a_wrong_cluster_is_an_error(value, message):
    with pytest.raises(LaunchError, match=message):
        machines_of(value)


def test_several_machines_are_refused_as_long_as_the_engine_cannot_reach_them():
    check_reachable(Machines())
    with pytest.raises(LaunchError, match=r"2 machines \(10.0.0.1, 10.0.0.2\)"):
        check_reachable(Machines(("10.0.0.1", "10.0.0.2"), 1))


def test_ranks_run_over_machines_and_then_over_their_workers():
    environments = worker_environments({}, 3, ["5", "6", "7"], Machines(("a", "b"), 1))
    assert [env["LOCKSTEP_RANK"] for env in environments] == ["3", "4", "5"]
    assert [env["LOCKSTEP_LOCAL_RANK"] for env in environments] == ["0", "1", "2"]
    assert {env["LOCKSTEP_WORLD_SIZE"] for env in environments} == {"6"}
    assert {env["LOCKSTEP_LOCAL_WORLD_SIZE"] for env in environments} == {"3"}
    assert {env["LOCKSTEP_RENDEZVOUS"].partition(":")[0] for env in environments} == {"a"}
    tasks = [json.loads(env["TF_CONFIG"])["task"] for env in environments]
    assert tasks == [{"type": "worker", "index": index} for index in (2, 3, 4)]


def test_workers_of_one_machine_agree_on_all_but_their_place():
    first, second = worker_environments({"HOME": "/h"}, 2, None)
    for name in ("LOCKSTEP_WORLD_SIZE", "LOCKSTEP_RENDEZVOUS", "LOCKSTEP_SECRET", "LOCAL_WORLD_SIZE", "HOME"):
        assert first[name] == second[name]
    assert len(bytes.fromhex(first["LOCKSTEP_SECRET"])) == 32
    configs = [json.loads(env["TF_CONFIG"]) for env in (first, second)]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert [config["task"] for config in configs] == [{"type": "chief", "index": 0}, {"type": "worker", "index": 0}]
    addresses = configs[0]["cluster"]["chief"] + configs[0]["cluster"]["worker"]
    assert len({first["LOCKSTEP_RENDEZVOUS"], *addresses}) == 3
    assert "CUDA_VISIBLE_DEVICES" not in first


def test_every_job_has_a_secret_of_its_own():
    assert (
        worker_environments({}, 1, None)[0]["LOCKSTEP_SECRET"] != worker_environments({}, 1, None)[0]["LOCKSTEP_SECRET"]
    )


def test_a_single_worker_keeps_its_tf_config_and_threads():
    (environment,) = worker_environments({"TF_CONFIG": "mine"}, 1, ["7"])
    assert environment["TF_CONFIG"] == "mine"
    assert environment["CUDA_VISIBLE_DEVICES"] == "7"
    assert environment["LOCKSTEP_WORLD_SIZE"] == "1"
    assert "OMP_NUM_THREADS" not in environment


def test_each_worker_sees_its_gpu_alone_and_none_on_the_cpu():
    assert [env["CUDA_VISIBLE_DEVICES"] for env in worker_environments({}, 2, ["3", "GPU-a"])] == ["3", "GPU-a"]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in worker_environments({}, 2, [])] == ["", ""]


def test_threads_are_shared_among_workers_unless_the_user_set_them():
    assert threads_per_worker(16, 4) == {
        "TF_NUM_INTRAOP_THREADS": "4",
        "TF_NUM_INTEROP_THREADS": "4",
        "OMP_NUM_THREADS": "4",
    }
    assert threads_per_worker(2, 4) == {
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "OMP_NUM_THREADS": "1",
    }
    first, _ = worker_environments({"OMP_NUM_THREADS": "17"}, 2, None)
    assert first["OMP_NUM_THREADS"] == "17"
    assert int(first["TF_NUM_INTRAOP_THREADS"]) >= 1


def test_a_quota_of_the_control_group_limits_the_processors(tmp_path):
    everything = len(os.sched_getaffinity(0))
    assert available_cpus(tmp_path) == everything
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cpus(tmp_path) == everything
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cpus(tmp_path) == 1


def test_an_older_control_group_limits_the_processors_too(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert available_cpus(tmp_path) == len(os.sched_getaffinity(0))
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("100000\n")
    assert available_cpus(tmp_path) == 1


def test_free_ports_are_distinct_and_can_be_listened_on():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            listener.listen()
