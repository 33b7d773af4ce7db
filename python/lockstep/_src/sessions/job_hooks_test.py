"""Hooks of sessions on one worker.

For several workers see tests/multiprocess/scope/scope_test.py and tests/multiprocess/sessions/stopping_test.py.
"""

import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep._src.sessions import job_hooks
from lockstep._src.tables.dynamic import get_embedding_variable
from lockstep.launch.base import notes

tf1 = tf.compat.v1


def run(hooks, steps=3, losses=None, in_scope=True, folder=None):
    """Runs steps in a session; the tensor 'loss' has these losses, one per step. Returns the steps taken."""
    with tf.Graph().as_default(), scope() if in_scope else contextlib.nullcontext():
        step = tf1.train.get_or_create_global_step()
        loss = tf.gather(losses if losses is not None else [0.0] * steps, step, name="loss")
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1)
        made = [hook(loss) if callable(hook) else hook for hook in hooks]
        arguments = {"checkpoint_dir": folder, "save_checkpoint_secs": None, "save_summaries_steps": None}
        with tf1.train.MonitoredTrainingSession("", hooks=made, **arguments) as session:
            taken = 0
            while taken < steps and not session.should_stop():
                session.run(train_op)
                taken += 1
        return taken


@pytest.mark.parametrize("in_scope", [False, True], ids=["TensorFlow", "scope"])
def test_a_loss_that_is_nan_ends_training(in_scope):
    def hook(loss):
        return tf1.train.NanTensorHook(loss, fail_on_nan_loss=False)

    assert run([hook], 4, [0.0, np.nan, 0.0, 0.0], in_scope) == 2


class OwnNanHook(tf1.train.NanTensorHook):
    """A program's subclass, which also does something at the start and at the end."""

    def __init__(self, loss, calls):
        super().__init__(loss)
        self.calls = calls

    def after_create_session(self, session, coord):
        self.calls.append("created")

    def end(self, session):
        self.calls.append("ended")


@pytest.mark.parametrize("in_scope", [False, True], ids=["TensorFlow", "scope"])
def test_a_subclass_of_the_nan_hook_keeps_its_methods(in_scope, tmp_path):
    calls = []
    run([lambda loss: OwnNanHook(loss, calls)], in_scope=in_scope, folder=str(tmp_path))
    assert calls == ["created", "ended"]


def test_a_saver_hook_tells_the_launcher_in_each_session_and_is_left_as_it_was(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(notes, "say", told.append)

    class Listener(tf1.train.CheckpointSaverListener):
        """A listener of the program."""

    own = [Listener()]
    for folder in ("first", "second"):
        hook = tf1.train.CheckpointSaverHook(str(tmp_path / folder), save_steps=2, listeners=own)
        for steps in (2, 4):
            told.clear()
            hook._saver = None
            run([hook], 2, [0.0] * 4, folder=str(tmp_path / folder))
            saved = [note for note in told if note["is"] == "saved"]
            assert saved[-1] == {
                "is": "saved",
                "path": str(tmp_path / folder / f"model.ckpt-{steps}"),
                "file": str(tmp_path / folder / f"model.ckpt-{steps}.index"),
                "step": steps,
                "resumes": True,
                "data": True,
            }
            assert os.path.exists(saved[-1]["file"])
            assert len(saved) == len({note["path"] for note in saved})
            assert hook._listeners == own


def _told_by_a_session(monkeypatch, folder, build, steps, options, **periods):
    """Trains for some steps, and returns the notes on checkpoints; each says whether its file exists at that moment."""
    told = []
    monkeypatch.setattr(notes, "say", lambda note: told.append({**note, "exists": os.path.exists(note["file"])}))
    with tf.Graph().as_default(), scope(**options):
        fetch = [build(), tf1.assign_add(tf1.train.get_or_create_global_step(), 1)]
        with tf1.train.MonitoredTrainingSession(checkpoint_dir=str(folder), **periods) as session:
            for _ in range(steps):
                session.run(fetch)
    assert all(note["exists"] and note["file"] == note["path"] + ".index" and note["resumes"] for note in told)
    return {os.path.relpath(note["path"], folder): note["data"] for note in told}


def _numbers():
    return tf1.data.make_one_shot_iterator(tf.data.Dataset.range(9)).get_next()


@pytest.mark.parametrize(
    ("build", "saved", "data"),
    [(_numbers, True, True), (_numbers, False, False), (lambda: tf.constant(1), False, True)],
    ids=["a position", "no position", "no data"],
)
def test_the_launcher_is_told_whether_the_same_command_resumes_in_the_data(monkeypatch, tmp_path, build, saved, data):
    told = _told_by_a_session(monkeypatch, tmp_path, build, 2, {"save_data_position": saved})
    assert told["model.ckpt-2"] == data


# Promise (launching.md): the last lines name the last complete checkpoint.
def test_the_launcher_is_told_of_each_increment_while_it_exists(monkeypatch, tmp_path):
    def build():
        table = get_embedding_variable("user", 3)
        return tf1.train.GradientDescentOptimizer(0.1).minimize(
            tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([7, 42], tf.int64)))
        )

    periods = {"save_checkpoint_steps": 100, "save_incremental_checkpoint_steps": 2}
    told = _told_by_a_session(monkeypatch, tmp_path, build, 5, {}, **periods)
    increments = [f".incremental_checkpoint/model.ckpt-0-to-{step}" for step in (2, 4, 5)]
    assert list(told) == ["model.ckpt-0", *increments, "model.ckpt-5"]


def test_hooks_keep_their_order_and_those_of_any_step_stay_as_they_are():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        other, logging = tf1.train.StopAtStepHook(last_step=3), tf1.train.LoggingTensorHook({}, every_n_iter=1)
        saver = tf1.train.CheckpointSaverHook("/nowhere", save_steps=1)
        found = job_hooks.adapt_hooks([other, saver, logging])
    assert (found[0], type(found[1]), found[2]) == (other, job_hooks.PeriodicJobHook, logging)


@pytest.mark.parametrize("period", [{"every_n_secs": 1e9}, {"every_n_iter": 2}], ids=["seconds", "steps"])
def test_a_hook_with_an_agreed_period_acts_as_the_hook_itself(period):
    class Counting(tf1.train.LoggingTensorHook):
        """A hook that counts the times it logs."""

        def _log_tensors(self, values):
            self.logged = [*getattr(self, "logged", []), self._iter_count]
            self._timer.update_last_triggered_step(self._iter_count)

    def wrapped(loss):
        return job_hooks.AgreedPeriodHook(hooks[1])

    hooks = [Counting(["loss"], **period) for _ in range(2)]
    run([hooks[0], wrapped], 5)
    assert hooks[0].logged == hooks[1].logged == ([0] if "every_n_secs" in period else [0, 2, 4])


def test_the_agreed_clock_acts_once_for_each_agreement():
    timer = tf1.train.SecondOrStepTimer(every_secs=1e9)
    agreed = job_hooks._AgreedTimer(timer)
    assert agreed.wants_to_trigger() and agreed.should_trigger_for_step(5)  # the first time, on all workers
    agreed.update_last_triggered_step(5)
    assert not agreed.wants_to_trigger() and not agreed.should_trigger_for_step(6)
    agreed.agreed = True
    assert not agreed.should_trigger_for_step(5) and agreed.should_trigger_for_step(6)
    agreed.update_last_triggered_step(6)
    assert not agreed.should_trigger_for_step(7) and agreed.last_triggered_step() == 6


def test_a_silenced_hook_computes_the_same_tensors_and_logs_nothing(caplog):
    hook = tf1.train.LoggingTensorHook(["loss"], every_n_iter=1)
    silenced = job_hooks._silenced(hook)
    with caplog.at_level("INFO", "tensorflow"):
        run([silenced])
    assert "loss" not in caplog.text and silenced._tag_order == hook._tag_order and hook._timer is not silenced._timer


def test_the_last_step_is_recorded(monkeypatch):
    ended = []
    monkeypatch.setattr(job_hooks.program_end, "ended_with", ended.append)
    run([job_hooks.LastStepHook()])
    assert ended == [3]
    assert context.world_size == 1


@pytest.mark.parametrize(
    ("tensors", "key"),
    [({"a": "c:0"}, None), ({"a": "not there:0"}, None), (["exchanged:0"], [None, 7, False, "exchanged:0"])],
    ids=["no exchange", "unknown", "an exchange"],
)
def test_logging_hooks_are_compared_if_their_tensors_need_an_exchange(tensors, key):
    from lockstep._src.collectives import ordered

    with tf.Graph().as_default(), scope():
        constant = tf.constant(1.0, name="c")
        tf.identity(ordered.allreduce(constant, name="summed"), name="exchanged")
        assert job_hooks._exchange_key(tf1.train.LoggingTensorHook(tensors, every_n_iter=7)) == key
