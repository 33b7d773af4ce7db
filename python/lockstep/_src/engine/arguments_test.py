"""Tests that public functions refuse arguments of wrong types, and name the argument."""

import pytest
import tensorflow as tf

from lockstep._src.engine import arguments
from lockstep._src.engine.context import Context
from lockstep._src.estimator import specs
from lockstep._src.evaluation.evaluation_hook import EvaluationHook
from lockstep._src.evaluation.result_policies import BestCheckpoint, EarlyStopping
from lockstep._src.saving.saved_models import export_all
from lockstep._src.sessions.policies import Policy
from lockstep._src.sessions.step_statistics import StepStatHook

pytestmark = pytest.mark.oldest


def fn():
    return {}


def early():
    return EarlyStopping("auc")


REFUSED = [
    (lambda: Context.set_tf_config("worker", 0, "a:1,b:2"), "set_tf_config: worker_hosts is 'a:1,b:2', wanted a list"),
    (lambda: Context.set_tf_config("worker", 0, ["a:1", 2]), "set_tf_config: worker_hosts has 2, wanted a list"),
    (lambda: Context.set_tf_config("worker", 0, ["a:1"], "p:1"), "set_tf_config: ps_hosts is 'p:1', wanted a list"),
    (lambda: EvaluationHook(fn, history={}), "EvaluationHook: history is {}, wanted a list"),
    (lambda: EvaluationHook(fn, history=()), "EvaluationHook: history is (), wanted a list"),
    (lambda: EvaluationHook(fn, summary_dir=3), "EvaluationHook: summary_dir is 3, wanted a path"),
    (lambda: EvaluationHook(fn, steps="3"), "EvaluationHook: steps is '3', wanted an integer"),
    (lambda: EvaluationHook(fn, policies="ab"), "EvaluationHook: policies is 'ab', wanted a list"),
    (lambda: EvaluationHook(fn, policies=early()), "EvaluationHook: policies is <"),
    (lambda: EvaluationHook(fn, policies=[early(), 3]), "EvaluationHook: policies has 3, wanted a list"),
    (lambda: EarlyStopping(["auc"]), "EarlyStopping: metric is ['auc'], wanted a str"),
    (lambda: EarlyStopping("auc", patience="3"), "EarlyStopping: patience is '3', wanted an integer"),
    (lambda: EarlyStopping("auc", min_delta="3"), "EarlyStopping: min_delta is '3', wanted a number"),
    (lambda: BestCheckpoint("auc", "d", max_to_keep="3"), "BestCheckpoint: max_to_keep is '3', wanted an integer"),
    (lambda: Policy(every_n_secs="3"), "Policy: every_n_secs is '3', wanted a number"),
    (lambda: Policy.Trigger("ab"), "Policy.Trigger: policies is 'ab', wanted a list"),
    (lambda: Policy.Trigger([early()]), "Policy.Trigger: policies has <"),
    (lambda: StepStatHook(every_n_iter="3"), "StepStatHook: every_n_iter is '3', wanted an integer"),
    (lambda: export_all("d", "c", fn, modes="predict"), "export_all: modes is 'predict', wanted a list"),
    (lambda: specs.RunConfig(save_checkpoints_steps="3"), "RunConfig: save_checkpoints_steps is '3', wanted an int"),
    (lambda: specs.RunConfig(keep_checkpoint_max="3"), "RunConfig: keep_checkpoint_max is '3', wanted an integer"),
    (lambda: specs.RunConfig(session_config={}), "RunConfig: session_config is {}, wanted a tf.compat.v1.ConfigProto"),
    (lambda: specs.TrainSpec(fn, "3"), "TrainSpec: max_steps is '3', wanted an integer"),
    (lambda: specs.EvalSpec(fn, hooks="ab"), "EvalSpec: hooks is 'ab', wanted a list"),
    (lambda: specs.EvalSpec(fn, exporters="ab"), "EvalSpec: exporters has 'ab', wanted"),
    (lambda: specs.EvalSpec(fn, throttle_secs="3"), "EvalSpec: throttle_secs is '3', wanted a number"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED, ids=[said.partition(",")[0] for _, said in REFUSED])
def test_a_wrong_type_is_refused_at_once(make, said):
    with pytest.raises(TypeError) as raised:
        make()
    assert str(raised.value).startswith(said)


def test_right_types_are_taken():
    EvaluationHook(fn, None, 3, "folder", [], policies=(early(),))
    StepStatHook(3, tf.constant(2))
    specs.RunConfig(save_checkpoints_steps=3, keep_checkpoint_max=None, log_step_count_steps=None)
    assert arguments.listed("f", "x", None, callable, "a list") == []
    assert arguments.listed("f", "x", iter("ab"), lambda c: c in "ab", "a list") == ["a", "b"]
