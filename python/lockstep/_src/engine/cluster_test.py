import json

import pytest

from lockstep._src.engine import elastic
from lockstep._src.engine.cluster import Cluster, Task

HOSTS = {"chief": ["a:1"], "worker": ["a:2", "b:1"]}


def tf_config(task_type, index, cluster=HOSTS):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})}


def launched(rank, size, **more):
    return {"LOCKSTEP_RANK": str(rank), "LOCKSTEP_WORLD_SIZE": str(size), **more}


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}])
def test_without_variables_the_job_has_one_worker(environ):
    cluster = Cluster.from_environment(environ)
    assert (cluster.rank, cluster.world_size, cluster.local_world_size) == (0, 1, 1)
    assert (cluster.task_type, cluster.task_id, cluster.spec) == ("localhost", 0, None)
    cluster.check_can_connect()


@pytest.mark.parametrize(
    ("task_type", "index", "rank", "local_rank", "local_size"),
    [("chief", 0, 0, 0, 2), ("worker", 0, 1, 1, 2), ("worker", 1, 2, 0, 1)],
)
def test_tf_config_ranks_the_chief_first_then_the_workers(task_type, index, rank, local_rank, local_size):
    cluster = Cluster.from_environment(tf_config(task_type, index))
    assert (cluster.rank, cluster.world_size) == (rank, 3)
    assert (cluster.local_rank, cluster.local_world_size) == (local_rank, local_size)
    assert cluster.rendezvous == "a:1"
    known = Cluster.from_environment({"LOCKSTEP_SECRET": "REPLACE-WITH-RANDOM-TEXT", **tf_config(task_type, index)})
    with pytest.raises(ValueError, match=f"rank {rank} of 3: LOCKSTEP_SECRET is REPLACE-WITH-RANDOM-TEXT, the public"):
        known.check_can_connect()
    with pytest.raises(ValueError, match=rf"rank {rank} of 3: LOCKSTEP_SECRET"):
        cluster.check_can_connect()


def test_tf_config_without_chief_starts_at_worker_0():
    assert Cluster.from_environment(tf_config("worker", 1, {"worker": ["a:1", "a:2"]})).rank == 1


def test_sparse_cluster_is_read_in_the_order_of_its_indices():
    sparse = {"worker": {"1": "b:1", "0": "a:1"}}
    assert Task.from_environment(tf_config("worker", 0, sparse)).cluster == {"worker": ["a:1", "b:1"]}


# Promise (hybridbackend.md): it has them all (HybridBackend: the context of an evaluator or a parameter server lacks
# most of its attributes).
def test_evaluator_is_a_job_of_its_own():
    cluster = Cluster.from_environment(tf_config("evaluator", 0, {**HOSTS, "evaluator": ["c:1"]}))
    assert (cluster.rank, cluster.world_size, cluster.task_type) == (0, 1, "evaluator")


# Promise (hybridbackend.md): it has them all (HybridBackend: the context of an evaluator or a parameter server lacks
# most of its attributes).
def test_parameter_server_is_beside_the_job_and_cannot_train():
    cluster = Cluster.from_environment(tf_config("ps", 0, {**HOSTS, "ps": ["c:1"]}))
    assert (cluster.rank, cluster.world_size, cluster.task_type) == (0, 1, "ps")
    with pytest.raises(ValueError, match=r"parameter server.*Server\(\).join"):
        cluster.check_can_connect()


@pytest.mark.parametrize("beside", ["evaluator", "ps"])
@pytest.mark.parametrize(("rank", "role"), [(0, "chief"), (1, "worker")])
def test_the_launchers_workers_know_of_the_tasks_beside_them_and_train_without(beside, rank, role):
    hosts = {"chief": ["a:1"], "worker": ["a:2"], beside: ["c:1"]}
    variables = {"LOCKSTEP_RENDEZVOUS": "a:3", "LOCKSTEP_SECRET": "s", **tf_config(role, 0, hosts)}
    cluster = Cluster.from_environment(launched(rank, 2, **variables))
    assert (cluster.rank, cluster.world_size, cluster.spec) == (rank, 2, hosts)
    cluster.check_can_connect()


def test_unknown_role_is_refused():
    with pytest.raises(ValueError, match="'master' does not train"):
        Cluster.from_environment(tf_config("master", 0, {**HOSTS, "master": ["c:1"]}))


def test_launcher_wins_over_tf_config():
    environ = launched(2, 3, LOCKSTEP_RENDEZVOUS="h:9", LOCKSTEP_SECRET="s", **tf_config("worker", 1))
    cluster = Cluster.from_environment(environ)
    assert (cluster.rank, cluster.world_size, cluster.rendezvous) == (2, 3, "h:9")
    assert (cluster.task_type, cluster.task_id) == ("worker", 1)
    cluster.check_can_connect()


@pytest.mark.parametrize(
    ("variables", "both", "rendezvous", "listen"),
    [
        ({}, True, "10.0.0.1:9", "[::]:9"),
        ({}, False, "10.0.0.1:9", "0.0.0.0:9"),
        ({"LOCKSTEP_INTERFACE": "eth0"}, True, "10.0.0.1:9", ""),
        ({"LOCKSTEP_RENDEZVOUS_HERE": ""}, True, "h:9", ""),
    ],
    ids=["both protocols", "version 4", "an interface", "nowhere else"],
)
def test_on_a_machine_whose_name_leads_to_loopback_the_launcher_says_where_to_meet(
    monkeypatch, variables, both, rendezvous, listen
):
    monkeypatch.setattr("socket.has_dualstack_ipv6", lambda: both)
    environ = launched(0, 2, LOCKSTEP_RENDEZVOUS="h:9", LOCKSTEP_SECRET="s", LOCKSTEP_RENDEZVOUS_HERE="10.0.0.1:9")
    cluster = Cluster.from_environment({**environ, **variables})
    assert (cluster.rendezvous, cluster.listen) == (rendezvous, listen)


def test_workers_of_an_elastic_job_meet_where_the_round_says_whatever_a_launcher_around_it_said():
    environ = {"LOCKSTEP_RENDEZVOUS_HERE": "10.0.0.1:9"}
    elastic.Place(1, 2, 1, 2, 0, 1, "h", round=1, rendezvous="h:7", all_keep_state=False).write(environ, "secret")
    cluster = Cluster.from_environment(environ)
    assert (cluster.rank, cluster.rendezvous, cluster.listen) == (1, "h:7", "")


def test_launcher_alone_is_enough():
    cluster = Cluster.from_environment(launched(1, 2, LOCKSTEP_LOCAL_RANK="0", LOCKSTEP_LOCAL_WORLD_SIZE="1"))
    assert (cluster.task_type, cluster.task_id, cluster.local_rank, cluster.local_world_size) == ("worker", 1, 0, 1)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (launched("x", 2), "LOCKSTEP_RANK: got 'x'"),
        (launched(2, 2), "LOCKSTEP_RANK: got 2.*LOCKSTEP_WORLD_SIZE.*2"),
        (launched(0, 0), "LOCKSTEP_WORLD_SIZE: got 0"),
        (launched(0, 65537), "LOCKSTEP_WORLD_SIZE: got 65537 workers, wanted at most 65536"),
        (tf_config("worker", 0, {"worker": ["a:1"] * 65537}), "TF_CONFIG: got 65537 workers, wanted at most 65536"),
        ({"LOCKSTEP_RANK": "0"}, "LOCKSTEP_WORLD_SIZE is not set"),
        (launched(0, 2, **tf_config("chief", 0)), "LOCKSTEP_WORLD_SIZE is 2.*TF_CONFIG names 3"),
        ({"TF_CONFIG": "nonsense"}, "TF_CONFIG is not JSON"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG: got.*wanted an object"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "'task'"),
        ({"TF_CONFIG": '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}'}, "not a list"),
        (tf_config("worker", 2), "worker:2 is not in the cluster"),
    ],
)
def test_bad_variables_are_named(environ, message):
    with pytest.raises(ValueError, match=message):
        Cluster.from_environment(environ)
