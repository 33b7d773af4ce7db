"""Training and evaluation in turn, on one worker. Several workers: tests/multiprocess/estimator/estimator_test.py."""

import os

import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.estimator.estimator import Estimator, train_and_evaluate
from lockstep._src.estimator.exporters import Exporter
from lockstep._src.estimator.specs import EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec

_tf1 = tf.compat.v1
STEPS = 6


def input_fn():
    return tf.data.Dataset.from_tensors([1.0]).repeat(STEPS)


def model_fn(features, mode):
    """Builds a model whose weight is the number of steps."""
    weight = _tf1.get_variable("w", [], initializer=_tf1.zeros_initializer(), use_resource=True)
    loss = tf.reduce_sum(weight * features)
    if mode == ModeKeys.EVAL:
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"w": (weight.value(), tf.no_op())})
    train_op = _tf1.train.GradientDescentOptimizer(-1.0).minimize(loss, _tf1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


class Told(Exporter):
    """An exporter that records its calls."""

    def __init__(self, name):
        self._name, self.calls = name, []

    @property
    def name(self):
        return self._name

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        assert os.path.isdir(export_path) and os.path.basename(export_path) == self.name
        self.calls.append((os.path.basename(checkpoint_path), float(eval_result["w"]), is_the_final_export))
        return f"{self.name} {len(self.calls)}"


def make(folder, **config):
    settings = {"save_checkpoints_steps": 2, "save_summary_steps": None, "log_step_count_steps": None, **config}
    return Estimator(model_fn, str(folder), RunConfig(**settings))


def evaluated_steps(model, name=None):
    """Returns the steps of the evaluations that wrote summaries."""
    files = tf.io.gfile.glob(f"{model.eval_dir(name)}/*")
    events = [event for file in files for event in _tf1.train.summary_iterator(file)]
    return [event.step for event in events if event.summary.value]


def test_each_checkpoint_is_evaluated_and_exported_once(tmp_path):
    model, exporters = make(tmp_path), [Told("one"), Told("two")]
    spec = EvalSpec(input_fn, name="held_out", exporters=exporters, throttle_secs=0)
    values, exports = train_and_evaluate(model, TrainSpec(input_fn), spec)
    assert (values["w"], values["global_step"], exports) == (6, 6, ["one 4", "two 4"])
    assert evaluated_steps(model, "held_out") == [2, 4, 6]
    calls = [(f"model.ckpt-{step}", step, False) for step in (2, 4, 6)] + [("model.ckpt-6", 6, True)]
    assert [exporter.calls for exporter in exporters] == [calls, calls]


def test_evaluations_keep_their_distance_but_the_last_is_run(tmp_path):
    model = make(tmp_path)
    values, exports = model.train_and_evaluate(TrainSpec(input_fn, max_steps=5), EvalSpec(input_fn, throttle_secs=3600))
    assert (values["global_step"], exports) == (5, [])
    assert evaluated_steps(model) == [2, 5]


def test_nothing_is_evaluated_where_nothing_is_trained(tmp_path):
    model, told = make(tmp_path), Told("told")
    model.train(input_fn)
    spec = EvalSpec(input_fn, exporters=told, throttle_secs=0)
    assert train_and_evaluate(model, TrainSpec(input_fn, max_steps=STEPS), spec) == (None, [])
    assert (evaluated_steps(model), told.calls) == ([], [])


def test_evaluations_inside_of_training_need_no_checkpoint(tmp_path):
    history, told = [], Told("told")
    model = make(tmp_path, save_checkpoints_steps=100)
    spec = EvalSpec(input_fn, exporters=told)
    values, exports = train_and_evaluate(model, TrainSpec(input_fn), spec, eval_every_n_iter=4, eval_history=history)
    assert [(record["global_step"], record["w"]) for record in history] == [(4, 4)]
    assert (values["w"], exports) == (6, ["told 2"])
    assert told.calls == [("model.ckpt-6", 6, False), ("model.ckpt-6", 6, True)]


def test_hooks_and_listeners_run_in_training(tmp_path):
    class Listener(_tf1.train.CheckpointSaverListener):
        steps = []

        def after_save(self, session, global_step_value):
            self.steps.append(int(global_step_value))

    hook, listener = _tf1.train.StopAtStepHook(last_step=3), Listener()
    spec = TrainSpec(input_fn, hooks=[hook], saving_listeners=[listener])
    values, _ = train_and_evaluate(make(tmp_path), spec, EvalSpec(input_fn, throttle_secs=0))
    assert (values["global_step"], listener.steps) == (3, [0, 2, 3])


def test_an_evaluator_follows_the_checkpoints_to_the_last_step(tmp_path, monkeypatch):
    make(tmp_path).train(input_fn)
    monkeypatch.setattr(type(context), "task_type", "evaluator")
    model, told = make(tmp_path), Told("told")
    spec = EvalSpec(input_fn, exporters=told, start_delay_secs=0, throttle_secs=0)
    values, exports = train_and_evaluate(model, TrainSpec(input_fn, max_steps=STEPS), spec)
    assert (values["w"], exports) == (6, ["told 2"])
    assert [final for _, _, final in told.calls] == [False, True]
    assert evaluated_steps(model) == [6]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ((3, EvalSpec(input_fn)), "train_and_evaluate: train_spec is 3, wanted TrainSpec"),
        ((TrainSpec(input_fn), TrainSpec(input_fn)), "train_and_evaluate: eval_spec is TrainSpec.*, wanted EvalSpec"),
    ],
    ids=["train", "eval"],
)
def test_wrong_specs_are_refused(tmp_path, specs, message):
    with pytest.raises(TypeError, match=message):
        train_and_evaluate(make(tmp_path), *specs)
