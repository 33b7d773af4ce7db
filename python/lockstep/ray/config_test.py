"""The variables that workers of Ray get. tests/multiprocess/launch/ray_test.py runs jobs on Ray."""

import importlib.util
import json
import sys

import pytest

pytestmark = [
    pytest.mark.newest_only,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not here: tools/setup.sh ray"),
]


@pytest.fixture(name="ours", scope="module")
def _ours():
    from lockstep.ray import config

    return config


def _workers(ours, *nodes, **more):
    described = {"port": 20001, "cpus": 1.0, "has_gpu": False, **more}
    return [ours._Worker(node=node, host=f"10.0.0.{node}", **described) for node in nodes]


# Promise (ray.md): workers of Ray get their places and one secret.
def test_each_worker_gets_its_place_and_all_get_one_secret(ours):
    told = list(ours._variables(_workers(ours, "1", "1", "2")))
    assert [variables["LOCKSTEP_RANK"] for variables in told] == ["0", "1", "2"]
    assert [variables["LOCKSTEP_LOCAL_RANK"] for variables in told] == ["0", "1", "0"]
    assert [variables["LOCKSTEP_LOCAL_WORLD_SIZE"] for variables in told] == ["2", "2", "1"]
    assert {variables["LOCKSTEP_RENDEZVOUS"] for variables in told} == {"10.0.0.1:20001"}
    (secret,) = {variables["LOCKSTEP_SECRET"] for variables in told}
    assert len(bytes.fromhex(secret)) == 32
    (other,) = {variables["LOCKSTEP_SECRET"] for variables in ours._variables(_workers(ours, "1", "2"))}
    assert other != secret
    config = json.loads(told[2]["TF_CONFIG"])
    assert config["cluster"] == {"chief": ["10.0.0.1:20001"], "worker": ["10.0.0.1:20001", "10.0.0.2:20001"]}
    assert config["task"] == {"type": "worker", "index": 1}


# Promise (ray.md): workers of Ray get their places and one secret.
def test_workers_use_the_processors_and_gpus_that_ray_has_given(ours):
    (one,) = ours._variables(_workers(ours, "1", cpus=0))
    assert not {"TF_CONFIG", "CUDA_VISIBLE_DEVICES", "TF_NUM_INTRAOP_THREADS"} & one.keys()
    told = list(ours._variables(_workers(ours, "1", "1", cpus=4.0)))
    assert {variables["TF_NUM_INTRAOP_THREADS"] for variables in told} == {"4"}
    assert {variables["CUDA_VISIBLE_DEVICES"] for variables in told} == {""}
    # Ray itself names the GPUs of each worker.
    assert all("CUDA_VISIBLE_DEVICES" not in of for of in ours._variables(_workers(ours, "1", "1", has_gpu=True)))


def test_ranks_of_a_node_that_are_not_consecutive_are_refused(ours):
    with pytest.raises(RuntimeError, match="wanted consecutive ranks for the workers of a node"):
        list(ours._variables(_workers(ours, "1", "2", "1")))


def test_numbers_of_threads_that_are_set_stay(ours, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    monkeypatch.setenv("LOCKSTEP_RANK", "7")
    ours._set({"TF_NUM_INTRAOP_THREADS": "1", "LOCKSTEP_RANK": "0"})
    assert [ours.os.environ[name] for name in ("TF_NUM_INTRAOP_THREADS", "LOCKSTEP_RANK")] == ["3", "0"]


def test_a_missing_ray_is_an_error_that_names_the_package(monkeypatch):
    for name in ("lockstep.ray", "lockstep.ray.config"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"lockstep.ray needs Ray Train .*: pip install 'ray\[train\]'"):
        from lockstep.ray import LockstepConfig  # noqa: F401
