"""Modes, configurations and specifications of estimators: values, defaults and the messages of their checks."""

import pytest
import tensorflow as tf

from lockstep._src.estimator.specs import EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec

_tf1 = tf.compat.v1


class Exporter:
    """An exporter, as far as a spec looks at it."""

    def __init__(self, name):
        self.name = name


def input_fn():
    return None


@pytest.fixture(autouse=True)
def _graph():
    with tf.Graph().as_default():
        yield


def test_a_spec_has_all_that_the_model_gave_in_its_canonical_form():
    hook = _tf1.train.SessionRunHook()
    scaffold = _tf1.train.Scaffold()
    spec = EstimatorSpec(
        ModeKeys.TRAIN,
        loss=2.0,
        train_op=(op := tf.no_op()),
        eval_metric_ops={"a": [1, 2]},
        training_hooks=iter([hook]),
        scaffold=scaffold,
    )
    assert (spec.mode, spec.train_op, spec.predictions, spec.export_outputs) == ("train", op, {}, None)
    assert (spec.eval_metric_ops, spec.scaffold) == ({"a": (1, 2)}, scaffold)
    assert (spec.training_hooks, spec.training_chief_hooks, spec.evaluation_hooks) == ((hook,), (), ())
    assert (spec.loss.shape, spec.loss.dtype) == ([], tf.float32)


@pytest.mark.parametrize("loss", [3.0, [3.0], [[3.0]]], ids=str)
def test_a_loss_of_one_element_becomes_a_scalar(loss):
    spec = EstimatorSpec(ModeKeys.EVAL, loss=loss)
    assert spec.loss.shape == []
    with _tf1.Session() as session:
        assert session.run(spec.loss) == 3


@pytest.mark.parametrize(
    ("mode", "given", "missing"),
    [
        ("train", {"loss": 1.0}, "train_op"),
        ("train", {"train_op": 1}, "loss"),
        ("eval", {"predictions": 1}, "loss"),
        ("infer", {"loss": 1.0}, "predictions"),
    ],
)
def test_a_mode_names_what_it_needs(mode, given, missing):
    with pytest.raises(ValueError, match=f"EstimatorSpec: {missing} is None, which mode '{mode}' needs"):
        EstimatorSpec(mode, **given)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mode": "test"}, ValueError, "mode is 'test', wanted one of 'train', 'eval' or 'infer'"),
        ({"loss": [1.0, 2.0]}, ValueError, r"loss has shape \(2,\), wanted a scalar"),
        (
            {"eval_metric_ops": [1]},
            TypeError,
            r"eval_metric_ops is \[1\], wanted a dict of name to \(value, update_op\)",
        ),
        ({"eval_metric_ops": {"a": 1}}, TypeError, r"eval_metric_ops has 'a': 1, wanted \(value, update_op\)"),
        ({"training_hooks": [3]}, TypeError, "training_hooks has 3, wanted a list of tf.train.SessionRunHook"),
        ({"evaluation_hooks": 3}, TypeError, "evaluation_hooks is 3, wanted a list of tf.train.SessionRunHook"),
    ],
    ids=str,
)
def test_wrong_arguments_of_a_spec_are_refused(arguments, error, message):
    with pytest.raises(error, match=f"EstimatorSpec: {message}"):
        EstimatorSpec(**{"mode": "eval", "loss": 1.0, **arguments})


def test_specs_of_training_and_evaluation_have_their_defaults():
    assert TrainSpec(input_fn) == (input_fn, None, (), ())
    assert EvalSpec(input_fn) == (input_fn, 100, None, (), (), 120, 600)
    one = Exporter("one")
    assert EvalSpec(input_fn, exporters=one).exporters == EvalSpec(input_fn, exporters=[one]).exporters == (one,)
    listener = _tf1.train.CheckpointSaverListener()
    assert TrainSpec(input_fn, saving_listeners=[listener]).saving_listeners == (listener,)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TrainSpec(3), TypeError, "TrainSpec: input_fn is 3, wanted a function"),
        (lambda: TrainSpec(input_fn, 0), ValueError, "TrainSpec: max_steps is 0, wanted at least 1, or None"),
        (
            lambda: TrainSpec(input_fn, saving_listeners=[3]),
            TypeError,
            "TrainSpec: saving_listeners has 3, wanted a list",
        ),
        (lambda: EvalSpec(None), TypeError, "EvalSpec: input_fn is None, wanted a function"),
        (lambda: EvalSpec(input_fn, 0), ValueError, "EvalSpec: steps is 0, wanted at least 1, or None"),
        (lambda: EvalSpec(input_fn, name=3), TypeError, "EvalSpec: name is 3, wanted a str"),
        (
            lambda: EvalSpec(input_fn, throttle_secs=-1),
            ValueError,
            "EvalSpec: throttle_secs is -1, wanted 0 or more",
        ),
        (
            lambda: EvalSpec(input_fn, start_delay_secs=-1),
            ValueError,
            "EvalSpec: start_delay_secs is -1, wanted 0",
        ),
        (lambda: EvalSpec(input_fn, exporters=[3]), TypeError, "EvalSpec: exporters has 3, wanted exporters"),
        (
            lambda: EvalSpec(input_fn, exporters=[Exporter("x"), Exporter("x")]),
            ValueError,
            r"EvalSpec: exporters are named \['x', 'x'\], wanted different names",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_settings_of_training_and_evaluation_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "steps", "secs"),
    [
        ({}, None, 600),
        ({"save_checkpoints_steps": 7}, 7, None),
        ({"save_checkpoints_secs": 7}, None, 7),
        ({"save_checkpoints_secs": None}, None, None),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, None, None),
    ],
    ids=str,
)
def test_checkpoints_are_saved_by_one_period(arguments, steps, secs):
    config = RunConfig(**arguments)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (steps, secs)


@pytest.mark.parametrize(("unit", "other"), [("steps", "secs"), ("secs", "steps")])
def test_a_replaced_period_takes_the_place_of_the_other_unit(unit, other):
    config = RunConfig("folder", save_summary_steps=3, **{f"save_checkpoints_{unit}": 9})
    replaced = config.replace(**{f"save_checkpoints_{other}": 5})
    assert (getattr(replaced, f"save_checkpoints_{unit}"), getattr(replaced, f"save_checkpoints_{other}")) == (None, 5)
    assert (replaced.model_dir, replaced.save_summary_steps) == ("folder", 3)
    assert (getattr(config, f"save_checkpoints_{unit}"), getattr(config, f"save_checkpoints_{other}")) == (9, None)


def test_a_configuration_is_built_from_one_of_tensorflows():
    class OfTensorFlow:
        def __init__(self):
            vars(self).update(vars(RunConfig("folder", tf_random_seed=5)))
            del self.save_incremental_checkpoint_secs, self.save_incremental_checkpoint_steps
            self._train_distribute = None

    built = RunConfig.build(OfTensorFlow(), log_step_count_steps=9)
    assert vars(built) == vars(RunConfig("folder", tf_random_seed=5, log_step_count_steps=9))
    distributed = OfTensorFlow()
    distributed._train_distribute = "mirrored"
    with pytest.raises(ValueError, match="RunConfig: train_distribute is 'mirrored', wanted None"):
        RunConfig.build(distributed)
    assert vars(RunConfig.build(None, model_dir="folder")) == vars(RunConfig("folder"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"save_step": 3}, TypeError, "unknown argument 'save_step'"),
        ({"protocol": "grpc"}, ValueError, "protocol is 'grpc', wanted None: this library distributes the training"),
        (
            {"save_checkpoints_steps": 3, "save_checkpoints_secs": 4},
            ValueError,
            "save_checkpoints_steps is 3 and save_checkpoints_secs is 4, wanted one of them",
        ),
        (
            {"save_incremental_checkpoint_steps": 3, "save_incremental_checkpoint_secs": 4},
            ValueError,
            r"save_incremental_checkpoint_secs and _steps are \(4, 3\), wanted one of them",
        ),
        (
            {"save_incremental_checkpoint_steps": 3, "save_checkpoints_secs": None},
            ValueError,
            "full checkpoints",
        ),
        ({"tf_random_seed": -1}, ValueError, "tf_random_seed is -1, wanted at least 0, or None"),
        ({"save_checkpoints_secs": -1}, ValueError, "save_checkpoints_secs is -1, wanted 0 or more seconds"),
        ({"save_checkpoints_secs": "3"}, TypeError, "save_checkpoints_secs is '3', wanted a number"),
        (
            {"keep_checkpoint_every_n_hours": -1},
            ValueError,
            "keep_checkpoint_every_n_hours is -1, wanted 0 or more",
        ),
        ({"device_fn": "/cpu:0"}, TypeError, "device_fn is '/cpu:0', wanted a function"),
        ({"session_config": 3}, TypeError, "session_config is 3, wanted a tf.compat.v1.ConfigProto"),
    ],
    ids=str,
)
def test_wrong_configurations_are_refused(arguments, error, message):
    with pytest.raises(error, match=f"RunConfig: .*{message}"):
        RunConfig(**arguments)


def test_a_configuration_says_where_the_process_is(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    config = RunConfig()
    assert (config.task_type, config.task_id, config.cluster_spec.jobs) == ("worker", 0, [])
    assert (config.is_chief, config.num_worker_replicas, config.num_ps_replicas) == (True, 1, 0)
    assert (config.global_id_in_cluster, config.master, config.evaluation_master) == (0, "", "")
