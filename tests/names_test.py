"""HybridBackend's names, with the arguments that its programs give them. Those of data, Keras and estimators apart."""

import inspect
import operator

import pytest
import tensorflow as tf

import hybridbackend.tensorflow as hb

tf1 = tf.compat.v1

_COLLECTIVES = {
    "allreduce": "value reduce_op name",
    "alltoall": "value sizes common_shape topology name",
    "broadcast": "value root_rank name",
    "allgather": "value varying_size name",
}
_EXPORT = "export_dir_base checkpoint_path signature_def_fn assets_extra as_text clear_devices strip_default_attrs mode"

# Names and the arguments that are given by name or in this order.
CALLED_WITH = {
    "scope": "",
    "embedding_scope": "",
    "function": "",
    "wraps": "cls",
    "enable_optimization": "logging_level relocate_ops",
    "disable_optimization": "",
    "get_session_config": "",
    "wraps_session_config": "session_config",
    "buildinfo": "",
    "Context": "",
    "Context.get": "",
    "Context.scope": "",
    "Context.get_tf_config": "",
    "Context.set_tf_config": "task_type task_id worker_hosts ps_hosts has_evaluator",
    "Context.canonicalize": "devices",
    "Context.current_device": "",
    "context.current_index": "",
    "context.rank_at": "device_or_tower_id",
    "context.add_saving_listener": "name listener",
    "context.update_params": "",
    "saved_model.export": _EXPORT,
    "pipeline.compute_pipeline": "",
    "metrics.accuracy": "labels predictions",
    "metrics.auc": "labels predictions",
    "metrics.gauc": "labels predictions indicators",
    "metrics.mean": "values",
    "train.EvaluationHook": "fn steps every_n_iter summary_dir history",
    "train.EvaluationSpec": "name hooks update_op eval_dict",
    "train.Policy": "",
    "train.Policy.Trigger": "policies scaffold output_dir",
    "train.StepStatHook": "every_n_iter count unit",
    "train.SyncReplicasOptimizer": "opt replicas_to_aggregate total_num_replicas variable_averages "
    "variables_to_average use_locking name",
    "train.SyncReplicasOptimizer.make_session_run_hook": "self is_chief num_tokens",
    "train.Saver": "var_list",
    "train.replace_default_saver": "",
    "train.Server": "server_or_cluster_def",
    "train.Server.get": "",
    "train.MonitoredTrainingSession": "",
    "train.monitored_session": "",
    "train.target": "",
    "train.device_setter": "",
    "train.wraps_server": "cls",
    "train.wraps_optimizer": "cls aggregation",
    "train.wraps_monitored_training_session": "function",
    "train.export": _EXPORT,
    "train.export_all": f"{_EXPORT}s".replace("signature_def_fn", "signature_defs_and_main_op_fn"),
    "distribute.active_size": "topology",
    "distribute.partition": "ids num_partitions",
    "distribute.partition_by_modulo": "ids num_partitions",
    "distribute.partition_by_dual_modulo_stage_one": "ids num_partitions modulus",
    "distribute.partition_by_dual_modulo_stage_two": "ids num_partitions modulus",
    "distribute.Collective.get": "",
    "distribute.RpcCollective": "group_world group_rank",
    "distribute.RpcCollective.broadcast": "self fn dtype shape root_rank name",
    "distribute.RpcCollective.allreduce": "self value merge_op final_op name",
    **{f"distribute.{name}": arguments for name, arguments in _COLLECTIVES.items()},
    **{f"distribute.Collective.{name}": arguments for name, arguments in _COLLECTIVES.items()},
}
VALUES = {
    **{f"distribute.ops.{name}": value for value, name in enumerate(["SUM", "PROD", "MAX", "MIN", "AVG"])},
    **{f"distribute.Topology.{name}": value for value, name in enumerate(["ALL", "INTRA_NODE", "INTER_NODE"])},
}
# Attributes of the context, in a process that is a job of its own.
OF_THE_CONTEXT = {
    **{"rank": 0, "world_size": 1, "local_world_size": 1, "task_type": "localhost", "task_id": 0, "is_chief": True},
    **{"target": "", "cluster_spec": None, "saving_listeners": [], "num_gpus": int, "has_gpu": bool, "devices": list},
    **{"cpu_devices": list, "local_devices": list, "local_cpu_device": str, "default_device": str, "options": object},
}
OPTIMIZERS = (
    *("Adadelta", "AdagradDA", "Adagrad", "Adam", "Ftrl", "GradientDescent", "MixedPrecisionLossScale", "Momentum"),
    *("ProximalAdagrad", "ProximalGradientDescent", "RMSProp"),
)


@pytest.mark.parametrize("name", CALLED_WITH)
def test_a_name_takes_hybridbackends_arguments(name):
    parameters = inspect.signature(operator.attrgetter(name)(hb)).parameters
    assert list(parameters)[: len(CALLED_WITH[name].split())] == CALLED_WITH[name].split()
    # What there is beyond them need not be given.
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    beyond = list(parameters.values())[len(CALLED_WITH[name].split()) :]
    assert all(parameter.default is not parameter.empty or parameter.kind in kinds for parameter in beyond)


@pytest.mark.parametrize("name", VALUES)
def test_a_constant_has_hybridbackends_value(name):
    assert operator.attrgetter(name)(hb) == VALUES[name]


@pytest.mark.parametrize("name", OF_THE_CONTEXT)
def test_the_context_has_hybridbackends_attributes(name, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    value, wanted = getattr(hb.context, name), OF_THE_CONTEXT[name]
    assert isinstance(value, wanted) if isinstance(wanted, type) else value == wanted


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_is_a_class_of_its_own_below_tensorflows(name):
    made = getattr(hb.train, f"{name}Optimizer")
    assert issubclass(made, tf1.train.Optimizer)
    assert f"{name}Optimizer" in dir(hb.train)
    if hasattr(tf1.train, f"{name}Optimizer"):
        assert issubclass(made, getattr(tf1.train, f"{name}Optimizer"))
        assert made is not getattr(tf1.train, f"{name}Optimizer")


def test_the_version_describes_the_build():
    assert hb.__version__ == hb.buildinfo()
    assert tf.__version__ in hb.__version__


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="MyOptimizer"):
        hb.train.MyOptimizer  # noqa: B018


def test_wraps_gives_other_classes_back():
    class Other:
        pass

    assert hb.wraps(Other) is Other
    assert hb.train.wraps_server(hb.train.Server) is hb.train.Server
    assert hb.train.wraps_server(Other) is hb.train.Server


def test_switches_of_optimizations_change_nothing(monkeypatch):
    hb.enable_optimization(logging_level=1, relocate_ops=True)
    hb.disable_optimization()
    hb.enable_optimization()


def _trained(optimizer):
    with tf.Graph().as_default():
        w = tf1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
        step = tf1.train.get_or_create_global_step()
        optimizer = optimizer()
        train_op = optimizer.minimize(tf.reduce_sum(w * w), step)
        hooks = []
        if isinstance(optimizer, hb.train.SyncReplicasOptimizer):
            hooks = [optimizer.make_session_run_hook(True, num_tokens=0)]
            assert optimizer.get_slot_names() == ["momentum"]
            assert optimizer.variables() == [optimizer.get_slot(w, "momentum")]
        with hb.train.monitored_session(hooks=hooks) as session:
            for _ in range(3):
                session.run(train_op)
            return [*session.run([w, step])[0].tolist(), session.run(step)]


def test_sync_replicas_optimizer_steps_as_the_one_in_it():
    def momentum():
        return tf1.train.MomentumOptimizer(0.1, 0.9)

    assert _trained(lambda: hb.train.SyncReplicasOptimizer(momentum(), replicas_to_aggregate=1)) == _trained(momentum)


def test_what_needs_parameter_servers_is_refused_with_the_reason():
    make = hb.train.SyncReplicasOptimizer
    inner = tf1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(NotImplementedError, match="to_aggregate is 2 .* the job has 1 workers.*parameter servers"):
        make(inner, 2)
    with pytest.raises(NotImplementedError, match="total_num_replicas 3"):
        make(inner, 1, 3)
    optimizer = make(inner, 1)
    with pytest.raises(NotImplementedError, match="tokens .*parameter servers"):
        optimizer.get_init_tokens_op()
    with pytest.raises(NotImplementedError, match="queue .*parameter servers"):
        optimizer.get_chief_queue_runner()
    with tf.Graph().as_default(), pytest.raises(ValueError, match="global_step is None"):
        optimizer.minimize(tf1.get_variable("w", initializer=1.0) * 2)


def test_communicators_of_one_worker_hand_values_on():
    with tf.Graph().as_default(), tf1.Session() as session:
        one = hb.distribute.Collective.get()
        assert one is hb.distribute.Collective.get()
        by_rpc = hb.distribute.RpcCollective(hb.context.devices, hb.context.rank)
        assert (by_rpc.group_size, by_rpc.group_key) == (1, 1)
        values = [
            one.allreduce([1.0]),
            one.allgather([2.0]),
            one.is_initialized,
            by_rpc.broadcast(lambda: [3.0], tf.float32, [1]),
            by_rpc.allreduce([4.0], "Add", "Div"),
        ]
        session.run(one.create)
        assert [value.tolist() for value in session.run(values)] == [[1.0], [2.0], True, [3.0], [4.0]]
        with pytest.raises(NotImplementedError, match="no handle"):
            one.handle  # noqa: B018
        with pytest.raises(NotImplementedError, match="by their names"):
            by_rpc.instance_scope("broadcast")
        with pytest.raises(NotImplementedError, match="a group of 2 of the job's 1 workers"):
            hb.distribute.RpcCollective(["/gpu:0", "/gpu:1"], 0)
        with pytest.raises(ValueError, match="merge_op is 'Mul' and final_op 'Div'"):
            by_rpc.allreduce([1.0], "Mul", "Div")
