import dataclasses
import json
import os
import subprocess

import pytest

from lockstep.launch.base import interfaces
from lockstep.launch.base.errors import LaunchError
from lockstep.launch.placement.tasks import Tasks
from lockstep.launch.placement.worker_environment import (
    KEEP_MEMORY,
    available_cpus,
    threads_per_worker,
    worker_environments,
)

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

CHIEF_AND_WORKER = Tasks(("127.0.0.1:8860", "127.0.0.1:8861"))


def _tf_configs(environments: list[dict]) -> list[dict]:
    return [json.loads(environment["TF_CONFIG"]) for environment in environments]


def test_ranks_run_over_tasks_and_then_over_their_workers():
    environments = worker_environments({"LOCKSTEP_SECRET": "s"}, 3, ["5", "6", "7"], Tasks(("a:1", "b:1"), 1))
    assert [env["LOCKSTEP_RANK"] for env in environments] == ["3", "4", "5"]
    assert [env["LOCKSTEP_LOCAL_RANK"] for env in environments] == ["0", "1", "2"]
    assert {env["LOCKSTEP_WORLD_SIZE"] for env in environments} == {"6"}
    assert {env["LOCKSTEP_LOCAL_WORLD_SIZE"] for env in environments} == {"3"}
    assert {env["LOCKSTEP_RENDEZVOUS"] for env in environments} == {"a:1"}
    tasks = [config["task"] for config in _tf_configs(environments)]
    assert tasks == [{"type": "worker", "index": index} for index in (2, 3, 4)]


def test_a_chosen_interface_is_where_a_launchers_own_workers_meet():
    first, _ = worker_environments({"LOCKSTEP_INTERFACE": "127.0.0.0/8"}, 2, None)
    assert first["LOCKSTEP_RENDEZVOUS"].startswith("127.0.0.1:")
    with pytest.raises(LaunchError, match="network interface 'no0' does not exist"):
        worker_environments({"LOCKSTEP_INTERFACE": "no0"}, 2, None)


def test_tasks_of_several_hosts_have_local_ranks_on_each_and_need_a_secret(tmp_path):
    tasks = Tasks(("[::1]:1", "[::1]:2", "b:1"), 1)
    environments = worker_environments({"LOCKSTEP_SECRET": "s"}, 2, None, tasks)
    places = [(e["LOCKSTEP_RANK"], e["LOCKSTEP_LOCAL_RANK"], e["LOCKSTEP_LOCAL_WORLD_SIZE"]) for e in environments]
    assert places == [("2", "2", "4"), ("3", "3", "4")]
    assert environments[0]["LOCKSTEP_RENDEZVOUS"] == "[::1]:1"
    (last,) = worker_environments({"LOCKSTEP_SECRET": "s"}, 1, None, dataclasses.replace(tasks, index=2))
    assert (last["LOCKSTEP_RANK"], last["LOCKSTEP_LOCAL_RANK"], last["LOCKSTEP_LOCAL_WORLD_SIZE"]) == ("2", "0", "1")
    with pytest.raises(LaunchError, match="-n 30000: got 90000 workers, wanted at most 65536"):
        worker_environments({"LOCKSTEP_SECRET": "s"}, 30000, None, tasks)
    with pytest.raises(LaunchError, match="tasks on 2 hosts, LOCKSTEP_SECRET is not set.*only this host"):
        worker_environments({"XDG_STATE_HOME": str(tmp_path)}, 2, None, tasks)


@pytest.mark.timeout(240)  # It takes seconds; a quarter of an hour and 80 GB if each worker copied all addresses.
def test_more_addresses_than_a_process_can_be_told_of_are_refused():
    tasks = Tasks(("192.0.2.1:1", "192.0.2.2:1"))
    with pytest.raises(
        LaunchError, match="TF_CONFIG: the addresses of 60000 workers are [0-9]+ characters, .* of less than 131072"
    ):
        worker_environments({"LOCKSTEP_SECRET": "s"}, 30000, None, tasks)
    text = "x" * (131071 - len("TF_CONFIG="))
    assert subprocess.run(["true"], env={"TF_CONFIG": text[1:], "PATH": os.defpath}).returncode == 0
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true"], env={"TF_CONFIG": text + "x", "PATH": os.defpath})


def test_a_first_host_whose_name_leads_it_to_loopback_listens_where_others_reach_it(monkeypatch):
    """On Debian, /etc/hosts has a machine's own name as 127.0.1.1."""
    tasks = Tasks(("localhost:8860", "localhost:8861", "b:8860"))
    monkeypatch.setattr(interfaces, "_address_towards", {"b": "10.0.0.1"}.get)

    def meetings(index, **variables):
        base = {"LOCKSTEP_SECRET": "s", **variables}
        environments = worker_environments(base, 2, None, dataclasses.replace(tasks, index=index))
        return {(env["LOCKSTEP_RENDEZVOUS"], env["LOCKSTEP_RENDEZVOUS_HERE"]) for env in environments}

    assert meetings(0) == meetings(1) == {("localhost:8860", "10.0.0.1:8860")}
    assert meetings(2) == {("localhost:8860", "")}  # the address that the other host uses
    assert meetings(0, LOCKSTEP_INTERFACE="127.0.0.0/8") == {("localhost:8860", "127.0.0.1:8860")}
    monkeypatch.setattr(interfaces, "_address_towards", {"b": "127.0.0.1"}.get)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert meetings(0) == {("localhost:8860", "")}


@pytest.mark.parametrize("name", ["192.0.2.1", "a-host.invalid"])
def test_a_first_host_whose_name_leads_elsewhere_or_is_not_known_yet_listens_there(name):
    (env,) = worker_environments({"LOCKSTEP_SECRET": "s"}, 1, None, Tasks((f"{name}:1", "b:1")))
    assert (env["LOCKSTEP_RENDEZVOUS"], env["LOCKSTEP_RENDEZVOUS_HERE"]) == (f"{name}:1", "")


@pytest.mark.parametrize("count", [1, 2])
def test_launchers_of_the_tasks_of_a_machine_agree_on_all_but_their_workers_places(tmp_path, count):
    base = {"XDG_STATE_HOME": str(tmp_path), "TF_CONFIG": "of this task"}
    first, second = (
        worker_environments(base, count, None, dataclasses.replace(CHIEF_AND_WORKER, index=index)) for index in (0, 1)
    )
    own = {"LOCKSTEP_RANK", "LOCKSTEP_LOCAL_RANK", "TF_CONFIG"}
    assert len({tuple((n, v) for n, v in env.items() if n not in own) for env in first + second}) == 1
    assert first[0]["LOCKSTEP_RENDEZVOUS"] == "127.0.0.1:8860"
    assert [env["LOCKSTEP_RANK"] for env in first + second] == [str(rank) for rank in range(2 * count)]
    assert [env["LOCKSTEP_LOCAL_RANK"] for env in first + second] == [str(rank) for rank in range(2 * count)]
    assert first[0]["LOCAL_WORLD_SIZE"] == str(2 * count)
    assert int(first[0]["TF_NUM_INTRAOP_THREADS"]) <= max(1, available_cpus() // (2 * count))


def test_workers_of_several_tasks_have_addresses_that_no_task_was_given():
    base = {"LOCKSTEP_SECRET": "given"}
    tasks = Tasks(("h:20001", "h:8861"), auxiliary={"evaluator": ["h:20003"], "ps": {"0": "h:20004"}})
    first, second = (worker_environments(base, 2, None, dataclasses.replace(tasks, index=index)) for index in (0, 1))
    configs = _tf_configs(first + second)
    cluster = {"chief": ["h:20001"], "worker": ["h:20002", "h:8861", "h:20005"], **tasks.auxiliary}
    assert [config["cluster"] for config in configs] == [cluster] * 4
    assert [(config["task"]["type"], config["task"]["index"]) for config in configs] == [
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
        ("worker", 2),
    ]
    assert {env["LOCKSTEP_SECRET"] for env in first + second} == {"given"}


def test_a_tasks_only_worker_keeps_its_tf_config():
    (environment,) = worker_environments(
        {"TF_CONFIG": "mine", "LOCKSTEP_SECRET": "s"}, 1, None, dataclasses.replace(CHIEF_AND_WORKER, index=1)
    )
    assert (environment["TF_CONFIG"], environment["LOCKSTEP_RANK"]) == ("mine", "1")


@pytest.mark.parametrize("beside", [{"evaluator": ["e:1"]}, {"ps": ["p:1", "p:2"]}, {}])
@pytest.mark.parametrize(("has_chief", "trainers"), [(True, {"chief", "worker"}), (False, {"worker"})])
def test_workers_know_of_the_tasks_beside_the_job(beside, has_chief, trainers):
    first, second = _tf_configs(worker_environments({}, 2, None, Tasks(("h:1",), 0, has_chief, auxiliary=beside)))
    assert first["cluster"] == second["cluster"]
    assert first["cluster"].keys() == trainers | beside.keys()
    assert {role: first["cluster"][role] for role in beside} == beside


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


@pytest.mark.parametrize("count", [1, 2])
def test_workers_keep_freed_memory(count):
    environments = worker_environments({}, count, None)
    assert all(KEEP_MEMORY.items() <= environment.items() for environment in environments)


@pytest.mark.parametrize("base", [{"MALLOC_ARENA_MAX": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}])
def test_workers_free_memory_as_the_user_says(base):
    first, _ = worker_environments(base, 2, None)
    assert not KEEP_MEMORY.keys() & first.keys()


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
