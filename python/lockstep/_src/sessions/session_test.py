"""Sessions in the scope of one worker. For several workers see tests/multiprocess/scope/scope_test.py."""

import contextlib

import pytest
import tensorflow as tf
from tensorflow.python.training import training_util

from lockstep._src.engine.context import context
from lockstep._src.scope import scope

tf1 = tf.compat.v1


class Listener(tf1.train.CheckpointSaverListener):
    """A listener that records the steps at which checkpoints were saved."""

    def __init__(self):
        self.saved = []

    def after_save(self, session, global_step_value):
        self.saved.append(int(global_step_value))


@pytest.fixture
def listener(monkeypatch):
    monkeypatch.setattr(context, "_saving_listeners", {})
    listener = Listener()
    context.add_saving_listener("noting", listener)
    return listener


def train(**arguments):
    """Trains five steps with a summary."""
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        tf1.summary.scalar("two", 2.0)
        # TensorFlow's hooks read the step in the run that advances it; without this, the order would be random.
        with tf.control_dependencies([training_util._get_or_create_global_step_read()]):
            train_op = step.assign_add(1)
        with tf1.train.MonitoredTrainingSession("", **arguments) as session:
            for _ in range(5):
                session.run(train_op)


def test_listeners_are_called_for_checkpoints_of_a_session_in_a_scope(listener, tmp_path):
    with scope():
        train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2)
    assert listener.saved == [0, 2, 4, 5]


def test_listeners_are_not_called_outside_of_scopes(listener, tmp_path):
    train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2)
    assert listener.saved == []


def test_hooks_that_the_program_makes_have_the_listeners_that_it_gives_them(listener, tmp_path):
    own = Listener()
    scaffold = tf1.train.Scaffold()
    hook = tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=2, scaffold=scaffold, listeners=[own])
    with scope():
        train(scaffold=scaffold, hooks=[hook])
    assert listener.saved == []
    assert own.saved == [0, 2, 4, 5]


@pytest.mark.parametrize(
    "periods",
    [
        {},
        {"save_summaries_steps": 3},
        {"save_summaries_steps": None},
        {"save_summaries_secs": 1000},
        {"save_checkpoint_steps": 3, "save_summaries_steps": 0},
        {"save_checkpoint_secs": None},
        {"save_checkpoint_steps": None},
        {"summary_dir": "elsewhere"},
    ],
    ids=str,
)
def test_session_with_listeners_writes_what_tensorflows_session_writes(listener, tmp_path, periods):
    written = []
    for kind in ("plain", "scope"):
        folder = tmp_path / kind
        arguments = {"checkpoint_dir": str(folder), "log_step_count_steps": None, **periods}
        if "summary_dir" in periods:
            arguments["summary_dir"] = str(folder / periods["summary_dir"])
        with scope() if kind == "scope" else contextlib.nullcontext():
            train(**arguments)
        files = sorted(p.relative_to(folder).as_posix().split(".tfevents")[0] for p in folder.rglob("*") if p.is_file())
        summaries = [
            (event.step, value.tag, value.simple_value)
            for file in sorted(folder.rglob("*tfevents*"))
            for event in tf1.train.summary_iterator(str(file))
            for value in event.summary.value
        ]
        written.append((files, summaries))
    assert written[1] == written[0]


# Promise (hybridbackend.md): an error that names it (HybridBackend, a wrong result: a variable that a checkpoint of
# `model_dir` lacks begins untrained).
def test_a_checkpoint_that_lacks_a_variable_is_refused_in_the_directory_of_the_option(tmp_path):
    with scope(model_dir=str(tmp_path)):
        train()
        assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-5")
        with tf.Graph().as_default():
            tf1.train.get_or_create_global_step()
            tf1.get_variable("added", initializer=1.0)
            with pytest.raises(tf.errors.NotFoundError, match="added"), tf1.train.MonitoredTrainingSession(""):
                pass


def _files(folder):
    return {
        path.name: (path.stat().st_ino, path.read_bytes())
        for path in folder.glob("model.ckpt-*")
        if path.suffix != ".meta"
    }


@pytest.mark.parametrize("damage", ["cut", "other bytes", "another's name", "gone"])
def test_a_session_refuses_a_damaged_state_file(tmp_path, damage):
    with scope():
        train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2)
        path = tmp_path / "checkpoint"
        written = path.read_bytes()
        path.write_bytes(
            {
                "cut": written[:20],
                "other bytes": b"\xff" + written[1:],
                "another's name": written.replace(b"ckpt-5", b"ckpt-4", 1),
                "gone": b"",
            }[damage]
        )
        if damage == "gone":
            path.unlink()
        before = _files(tmp_path)
        with pytest.raises(tf.errors.DataLossError, match=f"{path}: .*refusing to start from step 0"):
            train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2)
        assert _files(tmp_path) == before
        path.write_bytes(written)
        train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-10")


def test_a_session_starts_from_step_0_if_the_first_save_was_cut_short(tmp_path):
    with scope():
        train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=10)
        for file in [*tmp_path.glob("model.ckpt-5*"), tmp_path / "checkpoint"]:
            file.unlink()
        train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=10)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-5")


def test_a_resumed_session_keeps_the_checkpoint_that_it_restored(tmp_path):
    with scope():
        train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=10)
        before = _files(tmp_path)
        assert sorted(before) == [f"model.ckpt-{k}.{end}" for k in (0, 5) for end in ("data-00000-of-00001", "index")]
        train(checkpoint_dir=str(tmp_path), save_checkpoint_steps=10)
    after = _files(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {f"model.ckpt-10.{end}" for end in ("data-00000-of-00001", "index")}


def test_a_session_that_restores_from_another_folder_saves_at_its_start(tmp_path):
    with scope():
        train(checkpoint_dir=str(tmp_path / "from"))
        hook = tf1.train.CheckpointSaverHook(str(tmp_path / "to"), save_steps=10)
        train(checkpoint_dir=str(tmp_path / "from"), save_checkpoint_secs=None, hooks=[hook])
    assert sorted(path.name for path in (tmp_path / "to").glob("*.index")) == [
        "model.ckpt-10.index",
        "model.ckpt-5.index",
    ]
