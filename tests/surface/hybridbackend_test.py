"""The façade's names and signatures are those of HybridBackend's documents."""

import inspect

import pytest

import hybridbackend.tensorflow as hb
import lockstep

pytestmark = pytest.mark.oldest

# Parameters and defaults as documented. What follows '*' is ours, by keyword alone.
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
        "clear_devices=True, strip_default_attrs=True, modes=None)"
    ),
    "train.export": (
        "(export_dir_base, checkpoint_path, signature_def_fn, assets_extra=None, as_text=False, clear_devices=True, "
        "strip_default_attrs=True, mode='infer')"
    ),
    "saved_model.export": (
        "(export_dir_base, checkpoint_path, signature_def_fn, assets_extra=None, as_text=False, clear_devices=True, "
        "strip_default_attrs=True, mode='infer')"
    ),
    "scope": "(**options)",
    "embedding_scope": "(**options)",
    "function": "(**options)",
    "Context": "()",
    "Context.get": "()",
    "Context.scope": "(**kwargs)",
    "Context.canonicalize": "(devices)",
    "Context.current_device": "()",
    "Context.get_tf_config": "()",
    "Context.set_tf_config": "(task_type, task_id, worker_hosts, ps_hosts=None, has_evaluator=False)",
    "context": "()",
    "context.add_saving_listener": "(name, listener)",
    "context.current_index": "()",
    "context.rank_at": "(device_or_tower_id)",
    "context.update_params": "(**kwargs)",
}

PROPERTIES = (
    *("cluster_spec", "cpu_devices", "default_device", "devices", "has_gpu", "is_chief", "local_cpu_device"),
    *("local_devices", "local_world_size", "num_gpus", "options", "rank", "saving_listeners", "target", "task_id"),
    *("task_type", "world_size"),
)


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


@pytest.mark.parametrize("name", PROPERTIES)
def test_property_of_the_context(name):
    getattr(hb.context, name)


def test_singleton():
    assert hb.context is hb.Context.get() is lockstep.context
