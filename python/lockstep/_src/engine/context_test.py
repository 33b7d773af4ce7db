import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

import lockstep
from lockstep._src.engine.context import Context, connection_options, context
from lockstep._src.engine.options import Options


@pytest.fixture
def fresh(monkeypatch):
    """Returns a new context in the place of the singleton, in an environment without a job."""
    for variable in list(os.environ):
        if variable.startswith(("LOCKSTEP_", "HB_")) or variable == "TF_CONFIG":
            monkeypatch.delenv(variable)
    monkeypatch.setenv("TF_CONFIG", "")  # so that the variable is restored after the test
    monkeypatch.setattr(Context, "_instance", None)
    return Context.get()


def workers(monkeypatch, task_type, index):
    cluster = {"chief": ["a:1"], "worker": ["a:2", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}}))


def test_singleton_is_context_get_and_callable():
    assert Context.get() is context is lockstep.context
    assert context() is context


def test_job_of_one_worker(fresh):
    assert (fresh.rank, fresh.world_size, fresh.local_world_size, fresh.is_chief) == (0, 1, 1, True)
    assert (fresh.task_type, fresh.task_id, fresh.target, fresh.cluster_spec) == ("localhost", 0, "", None)
    assert fresh.devices == fresh.local_devices
    assert fresh.cpu_devices == ["/job:localhost/replica:0/task:0/device:CPU:0"]


def test_a_fork_reads_its_own_environment_and_cannot_share_a_connection(fresh, monkeypatch):
    assert fresh.rank == 0
    workers(monkeypatch, "worker", 1)
    assert fresh.rank == 0
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert (fresh.rank, fresh.world_size) == (2, 3)
    monkeypatch.setattr(fresh, "_connected", True)
    monkeypatch.setattr(os, "getpid", lambda: parent + 2)
    with pytest.raises(RuntimeError, match=rf"{parent + 2}.*forked after its parent had connected.*{parent + 1}"):
        fresh.rank  # noqa: B018


def test_members_in_a_cluster(fresh, monkeypatch):
    workers(monkeypatch, "worker", 1)
    assert (fresh.rank, fresh.world_size, fresh.is_chief) == (2, 3, False)
    assert fresh.cluster_spec == tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["a:2", "b:1"]})
    assert fresh.get_tf_config().task_type == "worker"
    kind = "GPU" if fresh.has_gpu else "CPU"
    assert fresh.devices == [
        f"/job:{task}/replica:0/task:{index}/device:{kind}:0"
        for task, index in [("chief", 0), ("worker", 0), ("worker", 1)]
    ]
    assert [fresh.rank_at(device) for device in fresh.devices + fresh.cpu_devices] == [0, 1, 2] * 2
    assert fresh.rank_at(0) == fresh.rank_at("/cpu:0") == fresh.rank_at(fresh.local_devices[0]) == 2
    assert fresh.current_index() == 2


@pytest.mark.parametrize(("unknown", "message"), [(1, "tower 1"), ("/job:worker/task:7/cpu:0", "task:7")])
def test_a_device_of_no_worker_is_refused(fresh, monkeypatch, unknown, message):
    workers(monkeypatch, "worker", 1)
    with pytest.raises(ValueError, match=message):
        fresh.rank_at(unknown)


def test_local_devices_are_fit_for_a_session(fresh, monkeypatch):
    workers(monkeypatch, "worker", 0)
    with tf.Graph().as_default(), tf.device(fresh.local_cpu_device), tf.compat.v1.Session(fresh.target) as session:
        assert session.run(tf.constant(3) + 4) == 7


def test_devices_are_made_canonical():
    full = "/job:localhost/replica:0/task:0/device:CPU:0"
    assert Context.canonicalize(["/cpu:0", " /device:GPU:1"]) == [full, full.replace("CPU:0", "GPU:1")]
    with tf.Graph().as_default(), tf.device("/job:worker/task:1"):
        assert Context.current_device() == "/job:worker/replica:0/task:1/device:CPU:0"


@pytest.mark.parametrize("has_evaluator", [False, True])
def test_set_tf_config_makes_the_first_worker_chief(fresh, has_evaluator):
    hosts = ["a:1", "b:1", "c:1"]
    wanted = (
        [("chief", 0), ("evaluator", 0), ("worker", 0)]
        if has_evaluator
        else [("chief", 0), ("worker", 0), ("worker", 1)]
    )
    for index, (task_type, task_id) in enumerate(wanted):
        fresh.set_tf_config("worker", index, hosts, ps_hosts=["p:1"], has_evaluator=has_evaluator)
        assert (fresh.task_type, fresh.task_id) == (task_type, task_id)
        assert fresh.is_chief == (index == 0)
        assert fresh.get_tf_config().cluster[task_type][task_id] == hosts[index]
    with pytest.raises(ValueError, match="worker:"):
        fresh.set_tf_config("worker", 3, hosts, has_evaluator=has_evaluator)


def test_scope_restores_options_also_after_an_error(fresh):
    with pytest.raises(KeyError), Context.scope(mode="eval", grad_nbuckets=2) as inside:
        assert inside is fresh and (fresh.options.mode, fresh.options.grad_nbuckets) == ("eval", 2)
        with fresh.scope(mode="infer"):
            assert (fresh.options.mode, fresh.options.grad_nbuckets) == ("infer", 2)
        assert fresh.options.mode == "eval"
        raise KeyError
    assert (fresh.options.mode, fresh.options.grad_nbuckets) == ("train", 1)


# Promise (hybridbackend.md): all or none are set (HybridBackend, a wrong result: options stay changed after a scope
# that failed).
def test_refused_scope_changes_nothing(fresh):
    with pytest.raises(AttributeError, match="nonsense"), fresh.scope(grad_nbuckets=2, nonsense=1):
        raise AssertionError("entered")
    assert fresh.options.grad_nbuckets == 1


def test_update_params(fresh):
    assert fresh.update_params(batch_size=16) == {"batch_size": None}
    assert fresh.options.batch_size == 16


def test_saving_listeners_are_unique_by_name(fresh):
    first, second = object(), object()
    fresh.add_saving_listener("a", first)
    fresh.add_saving_listener("a", second)
    fresh.add_saving_listener("b", second)
    assert fresh.saving_listeners == [first, second]


def test_import_does_no_work():
    # The import loads neither TensorFlow nor the op library, because launchers import this package.
    code = "import sys, lockstep; assert 'tensorflow' not in sys.modules; assert not lockstep.context.is_initialized"
    broken = {**os.environ, "HB_GRAD_NBUCKETS": "x", "LOCKSTEP_RANK": "y"}
    subprocess.run([sys.executable, "-c", code], check=True, env=broken, timeout=500)


def test_workers_of_elastic_jobs_alone_outlive_the_loss_of_others(fresh, monkeypatch):
    assert connection_options(fresh.cluster, Options()).end_after_loss_s == Options().end_after_loss_s > 0
    monkeypatch.setenv("LOCKSTEP_ELASTIC", "127.0.0.1:1")
    assert connection_options(fresh.cluster, Options(end_after_loss_s=3)).end_after_loss_s is None
