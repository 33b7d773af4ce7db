"""The façade's names and signatures follow HybridBackend's documents."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

import hybridbackend.run
import hybridbackend.tensorflow as hb
import lockstep.train

pytestmark = pytest.mark.oldest

# Parameters and defaults as documented. Parameters after '*' are ours, by keyword only.
SIGNATURES = {
    "metrics.accuracy": (
        "(labels, predictions, weights=None, metrics_collections=None, updates_collections=None, name=None)"
    ),
    "metrics.auc": (
        "(labels, predictions, weights=None, num_thresholds=200, metrics_collections=None, updates_collections=None, "
        "curve='ROC', name=None, summation_method='trapezoidal')"
    ),
    "metrics.mean": "(values, weights=None, metrics_collections=None, updates_collections=None, name=None)",
    "metrics.gauc": (
        "(labels, predictions, indicators=None, metrics_collections=None, updates_collections=None, name=None)"
    ),
    "train.EvaluationHook": (
        "(fn, steps=100, every_n_iter=1000, summary_dir=None, history=None, *, at_end=False, policies=())"
    ),
    "train.EvaluationSpec": "(name, hooks, update_op, eval_dict)",
    "train.Policy": "(metrics=None, every_n_steps=None, every_n_secs=None, at_end=False)",
    "train.Policy.Trigger": "(policies, scaffold=None, output_dir=None)",
    "train.Policy.__call__": "(self, global_step, metrics, session, context=None, scaffold=None, writer=None)",
    "train.StepStatHook": "(every_n_iter=None, count=None, unit='sample')",
    "train.export_all": (
        "(export_dir_base, checkpoint_path, signature_defs_and_main_op_fn, assets_extra=None, as_text=False, "
        "clear_devices=True, strip_default_attrs=True, modes=None, *, updatable=False)"
    ),
    "train.export": (
        "(export_dir_base, checkpoint_path, signature_def_fn, assets_extra=None, as_text=False, clear_devices=True, "
        "strip_default_attrs=True, mode='infer', *, updatable=False)"
    ),
    "saved_model.export": (
        "(export_dir_base, checkpoint_path, signature_def_fn, assets_extra=None, as_text=False, clear_devices=True, "
        "strip_default_attrs=True, mode='infer', *, updatable=False)"
    ),
    "train.SyncReplicasOptimizer": (
        "(opt, replicas_to_aggregate, total_num_replicas=None, variable_averages=None, variables_to_average=None, "
        "use_locking=False, name='sync_replicas')"
    ),
    "train.SyncReplicasOptimizer.get_init_tokens_op": "(self, num_tokens=-1)",
    "train.SyncReplicasOptimizer.make_session_run_hook": "(self, is_chief, num_tokens=-1)",
    "train.SyncReplicasOptimizer.sync_at_end": "(self, session, is_chief)",
    "train.Server.get": "()",
    "keras.layers.dense_features": "(features, feature_columns)",
    "train.Server": "(server_or_cluster_def=None, **kwargs)",
    "train.MonitoredTrainingSession": "(*args, **kwargs)",
    "train.device_setter": "()",
    "train.wraps_optimizer": "(cls, aggregation=None)",
    "train.monitored_session": "(**kwargs)",
    "train.replace_default_saver": "()",
    "train.target": "()",
    "train.wraps_monitored_training_session": "(function)",
    "train.wraps_server": "(cls)",
    "wraps": "(cls)",
    "buildinfo": "()",
    "enable_optimization": "(logging_level=None, relocate_ops=False)",
    "disable_optimization": "()",
    "get_session_config": "(*args, **kwargs)",
    "wraps_session_config": "(session_config, *args, **kwargs)",
    "pipeline.compute_pipeline": "()",
    "distribute.Collective.allgather": "(value, varying_size=True, name=None)",
    "distribute.Collective.allreduce": "(value, reduce_op=None, name=None)",
    "distribute.Collective.alltoall": "(value, sizes=None, common_shape=None, topology=0, name=None)",
    "distribute.Collective.broadcast": "(value, root_rank=None, name=None)",
    "distribute.Collective.get": "()",
    "distribute.RpcCollective": "(group_world, group_rank)",
    "distribute.RpcCollective.allreduce": "(self, value, merge_op='Add', final_op='Id', name=None)",
    "distribute.RpcCollective.broadcast": "(self, fn, dtype, shape, root_rank=None, name=None)",
    "distribute.RpcCollective.instance_scope": "(self, shared_name, name=None)",
    "distribute.active_size": "(topology)",
    "distribute.allreduce": "(value, reduce_op=None, name=None)",
    "distribute.alltoall": "(value, sizes=None, common_shape=None, topology=0, name=None)",
    "distribute.broadcast": "(value, root_rank=None, name=None)",
    "distribute.allgather": "(value, varying_size=True, name=None)",
    "distribute.partition": "(ids, num_partitions)",
    "distribute.partition_by_modulo": "(ids, num_partitions, name=None)",
    "distribute.partition_by_dual_modulo_stage_one": "(ids, num_partitions, modulus, name=None)",
    "distribute.partition_by_dual_modulo_stage_two": "(ids, num_partitions, modulus, name=None)",
    "Context": "()",
    "Context.get": "()",
    "Context.canonicalize": "(devices)",
    "Context.current_device": "()",
    "Context.get_tf_config": "()",
    "Context.set_tf_config": "(task_type, task_id, worker_hosts, ps_hosts=None, has_evaluator=False)",
    "context": "()",
    "context.add_saving_listener": "(name, listener)",
    "context.current_index": "()",
    "context.rank_at": "(device_or_tower_id)",
}

PROPERTIES = (
    *("cluster_spec", "cpu_devices", "default_device", "devices", "has_gpu", "is_chief", "local_cpu_device"),
    *("local_devices", "local_world_size", "num_gpus", "options", "rank", "saving_listeners", "target", "task_id"),
    *("task_type", "world_size"),
)
# The names of enumerations, in the order of their numbers.
NUMBERED = {"ops": ("SUM", "PROD", "MAX", "MIN", "AVG"), "Topology": ("ALL", "INTRA_NODE", "INTER_NODE")}


def find(path):
    found = hb
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", SIGNATURES)
def test_signature(path):
    signature = inspect.signature(find(path))
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(plain)) == SIGNATURES[path]


@pytest.mark.parametrize("path", ["scope", "embedding_scope", "function", "Context.scope", "context.update_params"])
def test_options_are_typed_arguments_and_those_of_the_page(path):
    table = (Path(__file__).parents[2] / "docs/hybridbackend.md").read_text().partition("| option | default |")[2]
    rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    parameters = inspect.signature(find(path)).parameters
    assert sorted(parameters) == sorted(documented)
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["grad_nbuckets"].annotation is int and parameters["seed"].annotation == (int | None)


@pytest.mark.parametrize("name", inspect.signature(hb.scope).parameters)
def test_each_option_is_described_where_a_scope_is(name):
    assert f"\n  {name}: " in inspect.getdoc(hb.scope)


@pytest.mark.parametrize("name", PROPERTIES)
def test_property_of_the_context(name):
    getattr(hb.context, name)


@pytest.mark.parametrize("name", NUMBERED)
def test_numbers(name):
    assert [getattr(find(f"distribute.{name}"), member) for member in NUMBERED[name]] == list(
        range(len(NUMBERED[name]))
    )


def test_saver_is_tensorflows():
    assert issubclass(hb.train.Saver, tf.train.Saver)


def test_savers_of_increments_are_the_librarys():
    assert hb.train.IncrementalSaver is lockstep.train.IncrementalSaver


# Promise (hybridbackend.md): it reports none (HybridBackend: a process without GPU reports one).
def test_has_a_gpu_where_tensorflow_sees_one():
    assert hb.context.num_gpus == len(tf.config.list_physical_devices("GPU"))
    assert hb.context.has_gpu == (hb.context.num_gpus > 0)


def test_version_describes_the_build():
    assert hb.__version__ == hb.buildinfo()
    assert tf.__version__ in hb.__version__


def test_switches_of_optimizations_change_nothing():
    before = dict(os.environ)
    hb.enable_optimization(logging_level=1, relocate_ops=True)
    hb.disable_optimization()
    assert dict(os.environ) == before


def test_singleton():
    assert hb.context is hb.Context.get() is lockstep.context


OF_TENSORFLOW = [
    n for n in dir(tf.train) if n.endswith("Optimizer") and n not in ("Optimizer", "SyncReplicasOptimizer")
]


@pytest.mark.parametrize("name", OF_TENSORFLOW)
def test_every_optimizer_of_tensorflow_has_one_that_exchanges(name):
    wrapped = getattr(hb.train, name)
    assert issubclass(wrapped, getattr(tf.train, name)) and wrapped is getattr(hb.train, name)
    assert wrapped.compute_gradients is not getattr(tf.train, name).compute_gradients


def test_there_are_no_other_optimizers_than_tensorflows_and_ours():
    names = [name for name in dir(hb.train) if name.endswith("Optimizer")]
    ours = {"LazyAdamOptimizer", "MixedPrecisionLossScaleOptimizer", "SyncReplicasOptimizer"}
    assert set(names) == {*OF_TENSORFLOW, *ours}
    assert issubclass(hb.train.LazyAdamOptimizer, tf.train.AdamOptimizer)
    with pytest.raises(AttributeError, match="NoSuchOptimizer"):
        hb.train.NoSuchOptimizer  # noqa: B018


def test_what_is_no_class_of_optimizers_is_refused_or_left():
    class Other:
        pass

    assert hb.wraps(Other) is Other
    with pytest.raises(TypeError, match="wanted a subclass of tf.compat.v1.train.Optimizer"):
        hb.train.wraps_optimizer(Other)
    with pytest.raises(ValueError, match="aggregation is 'never'"):
        hb.train.wraps_optimizer(tf.train.AdamOptimizer, aggregation="never")


def test_configs_are_not_changed():
    given = tf.ConfigProto(log_device_placement=True)
    made = hb.wraps_session_config(given)
    assert made.gpu_options.allow_growth and made.log_device_placement
    assert given == tf.ConfigProto(log_device_placement=True)
    assert hb.get_session_config().allow_soft_placement


def test_the_launcher_is_a_function_by_both_of_its_names():
    assert str(inspect.signature(hybridbackend.run.run)).startswith("(command: ")
    called = []
    hybridbackend.run(lambda: called.append("hybridbackend.run"))
    hybridbackend.run.run(lambda: called.append("hybridbackend.run.run"))
    assert called == ["hybridbackend.run", "hybridbackend.run.run"]


_LAUNCH = """
import sys, hybridbackend
hybridbackend.run(lambda: print("called"))
assert not hasattr(hybridbackend, "launch") and "tensorflow" not in sys.modules
"""


def test_the_package_has_the_launcher_without_another_import():
    done = subprocess.run([sys.executable, "-W", "error", "-c", _LAUNCH], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("called\n", 0), done.stderr
