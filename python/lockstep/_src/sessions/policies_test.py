"""Policies and step statistics on one worker. For several workers see tests/multiprocess/sessions/stopping_test.py."""

import glob
import logging

import pytest
import tensorflow as tf

from lockstep._src.scope import scope
from lockstep._src.sessions.policies import Policy
from lockstep._src.sessions.step_statistics import StepStatHook

tf1 = tf.compat.v1


class Recorder(Policy):
    """A policy that records its calls, and requests a stop at a given step."""

    def __init__(self, stop_at=None, **arguments):
        super().__init__(**arguments)
        self.calls = []
        self.stop_at = stop_at

    def __call__(self, global_step, metrics, session, context=None, scaffold=None, writer=None):
        assert session.graph is tf1.get_default_graph() and scaffold.saver is not None
        self.calls.append((global_step, {tag: int(value) for tag, value in metrics.items()}, context is not None))
        if global_step == self.stop_at:
            context.request_stop()
        if writer is not None:
            writer.add_summary(tf1.Summary(value=[tf1.Summary.Value(tag="seen", simple_value=1)]), global_step)


def train(runs, hooks=(), **arguments):
    """Trains in a session of a scope; returns the number of runs. The tensor 'doubled' is twice the previous step."""
    with tf.Graph().as_default(), scope():
        step = tf1.train.get_or_create_global_step()
        before = tf.identity(step)
        doubled = tf.multiply(before, 2, name="doubled")
        with tf.control_dependencies([doubled]):
            train_op = step.assign_add(1)
        taken = 0
        with tf1.train.MonitoredTrainingSession("", hooks=hooks, **arguments) as session:
            while taken < runs and not session.should_stop():
                session.run(train_op)
                taken += 1
        return taken


def test_policy_is_called_every_n_steps_with_values_of_the_step():
    policy = Recorder(metrics={"twice": "doubled:0"}, every_n_steps=3)
    hooks = [policy]
    train(8, hooks)
    assert policy.calls == [(3, {"twice": 4, "iter": 2}, True), (6, {"twice": 10, "iter": 5}, True)]
    assert hooks == [policy]


@pytest.mark.parametrize(
    ("every", "calls"), [(None, [(4, False)]), (3, [(3, True), (4, False)]), (2, [(2, True), (4, True)])]
)
def test_end_of_training_calls_a_policy_once_if_requested(every, calls):
    policy = Recorder(every_n_steps=every, at_end=True)
    train(4, [policy])
    # Nothing runs at the end, so the context is missing.
    assert [(step, has_context) for step, _, has_context in policy.calls] == calls
    assert policy.only_at_end == (every is None)


def test_policy_by_the_clock():
    often, never = Recorder(every_n_secs=1e-9), Recorder(every_n_secs=1e9)
    train(3, [often, never])
    assert [call[0] for call in often.calls] == [1, 2, 3] and not never.calls


def test_policy_ends_training_after_its_step():
    assert train(10, [Recorder(every_n_steps=1, stop_at=4)]) == 4


@pytest.mark.parametrize("argument", ["hooks", "chief_only_hooks"])
def test_writer_writes_the_graph_and_summaries_of_policies(argument, tmp_path):
    policy = Recorder(every_n_steps=2)
    train(2, **{argument: [policy]}, summary_dir=str(tmp_path), save_summaries_steps=None, save_summaries_secs=None)
    assert len(policy.calls) == 1
    events = [event for file in glob.glob(f"{tmp_path}/*") for event in tf1.train.summary_iterator(file)]
    graphs = [tf1.GraphDef.FromString(event.graph_def) for event in events if event.graph_def]
    assert graphs and any(node.name == "doubled" for node in graphs[-1].node)
    assert [(event.step, v.tag) for event in events for v in event.summary.value] == [(2, "seen")]


def test_policy_with_a_trigger_of_its_own_is_called_once():
    policy, other = Recorder(every_n_steps=2), Recorder(every_n_steps=2)
    scaffold = tf1.train.Scaffold()
    train(2, [policy, Policy.Trigger([policy], scaffold), other], scaffold=scaffold)
    assert len(policy.calls) == len(other.calls) == 1


def test_policy_needs_a_global_step():
    with tf.Graph().as_default(), scope(), pytest.raises(RuntimeError, match="no global step"):
        tf1.train.MonitoredTrainingSession("", hooks=[Recorder(every_n_steps=1)])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"every_n_steps": 1, "every_n_secs": 1},
        {"every_n_steps": 0},
        {"every_n_secs": -1},
        {"metrics": ["a"], "at_end": True},
    ],
)
def test_bad_arguments_of_a_policy_are_refused(arguments):
    with pytest.raises(ValueError, match="Policy: "):
        Policy(**arguments)


def test_policy_without_a_call_is_an_error():
    class Nothing(Policy):
        pass

    with pytest.raises(NotImplementedError, match="Nothing does not override __call__"):
        train(1, [Nothing(every_n_steps=1)])


@pytest.mark.parametrize("count", [None, 32, "doubled:0"])
def test_step_statistics_are_logged_every_n_steps_and_at_the_end(count, caplog):
    class ByName(StepStatHook):
        def begin(self):
            if isinstance(self._count, str):
                self._count, self._is_fetched = tf1.get_default_graph().get_tensor_by_name(self._count), True
            super().begin()

    with caplog.at_level(logging.INFO, "tensorflow"):
        train(5, [ByName(every_n_iter=2, count=count, unit="row")])
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("secs/step: ")]
    assert len(lines) == 3  # after 2, 4 and all 5
    assert all(("rows/sec: " in line) == (count is not None) for line in lines)


def test_step_statistics_count_units(monkeypatch, caplog):
    seconds = iter([0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    monkeypatch.setattr("lockstep._src.sessions.step_statistics.time.perf_counter", lambda: next(seconds))
    with caplog.at_level(logging.INFO, "tensorflow"):
        train(3, [StepStatHook(count=30)])
    assert "secs/step: 0.50000 (100.00%), samples/sec: 60.00" in caplog.text
    with pytest.raises(ValueError, match="every_n_iter is 0"):
        StepStatHook(every_n_iter=0)
