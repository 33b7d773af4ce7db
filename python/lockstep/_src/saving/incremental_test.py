"""Incremental checkpoints of one worker: chains, their ends, and their errors."""

import glob
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.engine import background
from lockstep._src.estimator.estimator import Estimator
from lockstep._src.estimator.specs import EstimatorSpec, RunConfig
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.saving.table_saveables_test import slots_here
from lockstep._src.scope import scope
from lockstep._src.tables import dynamic

DIM = 3


class Program:
    """A table that evicts keys and counts them, a dense variable, and a step that trains both."""

    def __init__(self, **arguments):
        option = dynamic.EmbeddingVariableOption(
            record_frequency=True,
            record_version=True,
            filter_option=dynamic.CounterFilter(2),
            evict_option=dynamic.GlobalStepEvict(3),
        )
        self.table = dynamic.get_embedding_variable("user", DIM, ev_option=option)
        self.words = dynamic.get_embedding_variable("words", DIM, key_dtype=tf.string)
        self.dense = tf.get_variable("dense", [2], initializer=tf.zeros_initializer(), use_resource=True)
        self.ids = tf.placeholder(tf.int64, [None])
        rows = tf.nn.embedding_lookup(self.table, self.ids)
        rows = tf.concat([rows, tf.nn.embedding_lookup(self.words, tf.as_string(self.ids))], 0)
        loss = tf.reduce_sum(tf.square(rows - 1.0)) + tf.reduce_sum(self.dense)
        self.step = tf.train.get_or_create_global_step()
        self.train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=self.step)
        self.saver = IncrementalSaver(**arguments)
        self._tables = [[*table.export(), *table.export_slots(*slots_here())] for table in (self.table, self.words)]
        self._counts = [self.dense.read_value(), self.step.read_value(), self.table.candidate_count()]

    def held(self, session):
        """Returns the values of all of the program's variables."""
        parts = []
        for keys, *columns in session.run(self._tables):
            parts.append({key: [column[i].tolist() for column in columns] for i, key in enumerate(keys.tolist())})
        return [*parts, *(np.asarray(count).tolist() for count in session.run(self._counts))]

    def run(self, session, steps, seed):
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            session.run(self.train, {self.ids: rng.integers(0, 60, 20)})


@pytest.fixture(autouse=True)
def fresh_graph():
    with tf.Graph().as_default():
        yield


def restored(path):
    with tf.Graph().as_default(), tf.Session() as session:
        program = Program()
        program.saver.restore(session, path)
        return program.held(session)


def names(folder):
    return sorted(os.path.basename(path)[: -len(".index")] for path in glob.glob(f"{folder}/*.index"))


def saved(tmp_path, steps=(2, 2, 3), **arguments):
    """Saves a chain with these numbers of steps; returns the full checkpoint, and the values after each save."""
    held = []
    with tf.Graph().as_default(), tf.Session() as session:
        program = Program(**arguments)
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        paths = []
        for i, count in enumerate(steps):
            program.run(session, count, i)
            paths.append(program.saver.save(session, f"{tmp_path}/model.ckpt", session.run(program.step)))
            held.append(program.held(session))
    return paths, held


def test_a_chain_restores_all_values(tmp_path):
    paths, held = saved(tmp_path)
    assert names(tmp_path) == ["model.ckpt-2"]
    assert names(tmp_path / ".incremental_checkpoint") == ["model.ckpt-2-to-4", "model.ckpt-2-to-7"]
    assert restored(paths[0]) == held[-1]
    # The increment has only the touched keys: the words of the last three steps.
    reader = tf.train.load_checkpoint(paths[2])
    rng = np.random.default_rng(2)
    touched = {str(i).encode() for i in rng.integers(0, 60, [3, 20]).ravel()}
    assert set(reader.get_tensor("words-changed-keys").tolist()) == touched
    assert len(touched) < len(held[-1][1])
    assert len(reader.get_tensor("user-changed-removed")) > 0
    # Without increments, the full checkpoint gives its own values, once no file mentions increments.
    shutil.rmtree(tmp_path / ".incremental_checkpoint")
    with pytest.raises(tf.errors.DataLossError, match="according to .*increments.json, increments build on"):
        restored(paths[0])
    os.remove(tmp_path / "increments.json")
    assert restored(paths[0]) == held[0]


def test_training_continues_the_restored_chain(tmp_path):
    paths, _ = saved(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        program = Program()
        program.saver.restore(session, paths[0])
        program.run(session, 2, 9)
        program.saver.save(session, f"{tmp_path}/model.ckpt", session.run(program.step))
        held = program.held(session)
    assert restored(tf.train.latest_checkpoint(str(tmp_path))) == held


def test_every_nth_checkpoint_is_full_and_ends_the_chain(tmp_path):
    paths, held = saved(tmp_path, [1] * 5, full_every=3)
    assert names(tmp_path) == ["model.ckpt-1", "model.ckpt-4"]
    assert names(tmp_path / ".incremental_checkpoint") == ["model.ckpt-4-to-5"]
    assert restored(paths[3]) == held[4]
    assert restored(paths[0]) == held[0]


def test_a_save_by_another_saver_ends_the_chain(tmp_path):
    with tf.Session() as session:
        program = Program()
        other = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        program.run(session, 2, 0)
        program.saver.save(session, f"{tmp_path}/model.ckpt", 2)
        program.run(session, 1, 1)
        other.save(session, f"{tmp_path}/elsewhere/best.ckpt")
        program.run(session, 1, 2)
        # The changes since its own last checkpoint are not known any more.
        path = program.saver.save(session, f"{tmp_path}/model.ckpt", 4)
        assert path.endswith("model.ckpt-4")
        program.run(session, 1, 3)
        program.saver.save(session, f"{tmp_path}/model.ckpt", 5)
        held = program.held(session)
    assert restored(path) == held


def test_missing_replaced_and_damaged_links_are_named(tmp_path):
    paths, _ = saved(tmp_path / "good")

    def broken(change):
        shutil.rmtree(tmp_path / "bad", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        change(f"{tmp_path}/bad/.incremental_checkpoint/model.ckpt-2-to-")
        return restored(f"{tmp_path}/bad/model.ckpt-2")

    def move(source, target):
        for file in glob.glob(f"{glob.escape(source)}.*"):
            shutil.move(file, file.replace(source, target))

    def damage(prefix):
        for file in glob.glob(f"{glob.escape(prefix)}.data*"):
            data = Path(file).read_bytes()
            Path(file).write_bytes(bytes(255 - b for b in data))

    with pytest.raises(
        tf.errors.DataLossError, match="model.ckpt-2-to-4.index is missing: number 1 of 2 that build on"
    ):
        broken(lambda prefix: os.remove(f"{prefix}4.index"))
    with pytest.raises(tf.errors.FailedPreconditionError, match="model.ckpt-2-to-4.*builds on checkpoint id"):
        broken(lambda prefix: move(f"{prefix}7", f"{prefix}4"))
    with pytest.raises(tf.errors.OpError, match="model.ckpt-2-to-7"):
        broken(lambda prefix: damage(f"{prefix}7"))
    with pytest.raises(ValueError, match="chain.json is damaged and does not list"):
        broken(lambda prefix: Path(os.path.dirname(prefix), "chain.json").write_text("{"))

    def shorten(prefix):
        # Still valid JSON, but with a shorter chain.
        chain = Path(os.path.dirname(prefix), "chain.json")
        content = json.loads(chain.read_text())
        content["increments"].pop()
        chain.write_text(json.dumps(content))

    with pytest.raises(ValueError, match="chain.json is damaged and does not list.*checksum"):
        broken(shorten)
    # Another full checkpoint replaces the one on which they build.
    with pytest.raises(tf.errors.FailedPreconditionError, match="model.ckpt-2-to-4.*but the table holds id"):
        other, _ = saved(tmp_path / "other", [2])

        def replace(prefix):
            for file in glob.glob(f"{other[0]}*"):
                shutil.copy(file, f"{tmp_path}/bad")

        broken(replace)
    # An increment cannot be restored by itself.
    with pytest.raises(tf.errors.InvalidArgumentError, match="incremental"):
        restored(paths[1])


def copied(source, target):
    """Copies a folder as `cp source/* target`: without hidden names."""
    os.makedirs(target)
    for path in glob.glob(f"{source}/*"):
        shutil.copy(path, target)
    return f"{target}/model.ckpt-2"


# Promise (checkpoints.md): increments whose list or folder is lost are an error.
def test_increments_that_are_left_behind_or_not_listed_are_an_error_and_not_the_full_checkpoint(tmp_path):
    _, held = saved(tmp_path / "good")
    hidden = tmp_path / "good" / ".incremental_checkpoint"
    path = copied(tmp_path / "good", tmp_path / "copy")
    with pytest.raises(tf.errors.DataLossError, match="increments.json, .* Copy the hidden folder as well"):
        restored(path)
    shutil.copytree(hidden, tmp_path / "copy" / hidden.name)
    assert restored(path) == held[-1]
    os.remove(tmp_path / "copy" / hidden.name / "chain.json")
    wanted = "chain.json is missing. It lists .* has 2 of them: model.ckpt-2-to-4, model.ckpt-2-to-7. Training"
    for mark in ("increments.json", None):  # earlier versions do not write it
        with pytest.raises(tf.errors.DataLossError, match=wanted):
            restored(path)
        if mark:
            os.remove(tmp_path / "copy" / mark)
    shutil.rmtree(tmp_path / "copy" / hidden.name)
    assert restored(path) == held[0]


def test_a_checkpoint_without_increments_moves_without_the_hidden_folder(tmp_path):
    _, held = saved(tmp_path / "first", [2])
    assert restored(copied(tmp_path / "first", tmp_path / "copy")) == held[0]
    # A new full checkpoint ends the chain.
    with tf.Graph().as_default(), tf.Session() as session:
        program = Program()
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        for i in range(3):
            program.run(session, 1, i)
            if i == 2:
                program.saver._full().save(session, f"{tmp_path}/second/model.ckpt", 2)
            else:
                program.saver.save(session, f"{tmp_path}/second/model.ckpt", 2 * i)
        last = program.held(session)
    assert restored(copied(tmp_path / "second", tmp_path / "other")) == last


def test_sessions_save_increments_and_resume_from_them(tmp_path):
    folder = str(tmp_path / "job")
    batches = np.random.default_rng(1).integers(0, 60, [5, 20])

    def session_of(program):
        return tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder, save_checkpoint_steps=100, save_incremental_checkpoint_steps=2
        )

    with scope():
        program = Program()
        with session_of(program) as session:
            for batch in batches:
                session.run(program.train, {program.ids: batch})
            held = program.held(session._tf_sess())
            background.finish()
            shutil.copytree(folder, tmp_path / "killed")
        # As if the process had been killed here: the checkpoint at the session's end is removed.
        shutil.rmtree(folder)
        shutil.move(tmp_path / "killed", folder)
        with open(f"{folder}/.incremental_checkpoint/chain.json") as file:
            chain = json.load(file)
        assert chain.pop("crc32")
        assert chain == {"base": "model.ckpt-0", "increments": [f"model.ckpt-0-to-{i}" for i in (2, 4)]}
        with tf.Graph().as_default():
            program = Program()
            with session_of(program) as session:
                assert session._tf_sess().run(program.step) == 4
                session.run(program.train, {program.ids: batches[4]})
                assert program.held(session._tf_sess()) == held
        assert restored(tf.train.latest_checkpoint(folder)) == held


# Promise (deeprec.md): estimators resume from incremental checkpoints.
def test_estimators_resume_from_increments(tmp_path):
    class Fails(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_context.session.run(tf.train.get_global_step()) == 5:
                raise RuntimeError("as a machine does")

    def model_fn(features, mode):
        table = dynamic.get_embedding_variable("user", DIM)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, features))
        step = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=step)

    config = RunConfig(str(tmp_path), save_checkpoints_steps=1000, save_incremental_checkpoint_steps=2)
    assert RunConfig.build(config).save_incremental_checkpoint_steps == 2

    def train(**arguments):
        estimator = Estimator(model_fn, config=config)
        estimator.train(lambda: tf.data.Dataset.from_tensors(np.arange(3)).repeat(), **arguments)
        return estimator

    with pytest.raises(RuntimeError, match="as a machine does"):
        train(max_steps=10, hooks=[Fails()])
    background.finish()
    increments = names(tmp_path / ".incremental_checkpoint")
    last = max(int(name.split("-")[-1]) for name in increments)
    assert last in (3, 4)
    assert train(steps=1).get_variable_value("global_step") == last + 1


@pytest.mark.parametrize("wrong", [{"save_incremental_checkpoint_secs": 1}, {"save_checkpoints_steps": None}], ids=str)
def test_estimators_save_increments_by_one_time_beside_full_checkpoints(wrong):
    config = RunConfig(save_checkpoints_steps=1000, save_incremental_checkpoint_steps=2)
    with pytest.raises(ValueError, match="wanted one of them, and full checkpoints beside it"):
        config.replace(**wrong)


def test_increments_of_one_step_are_links_of_their_own(tmp_path):
    folder = tmp_path / ".incremental_checkpoint"
    paths, held = saved(tmp_path, [2, 1, 0, 0, 1])
    assert [os.path.basename(path) for path in paths[1:]] == [
        f"model.ckpt-2-to-{end}" for end in ("3", "3-2", "3-3", "4")
    ]
    assert restored(paths[0]) == held[-1]
    # Files that a killed writer has left are not in the chain, but are removed with it.
    for file in folder.glob("model.ckpt-2-to-4.*"):
        shutil.copy(file, str(file).replace("-to-4", "-to-9"))
    (folder / "model.ckpt-2-to-10_temp").mkdir()
    assert restored(paths[0]) == held[-1]
    saved(tmp_path, [1])
    assert [path.name for path in folder.iterdir()] == ["chain.json"]


def test_a_full_checkpoint_of_the_same_name_ends_the_chain(tmp_path):
    # As in a folder whose visible files were removed before the job was started again.
    saved(tmp_path, [1, 1])
    with tf.Session() as session:
        program = Program()
        other = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        program.run(session, 1, 7)
        path = other.save(session, f"{tmp_path}/model.ckpt", 1)
        held = program.held(session)
    assert restored(path) == held


def test_without_tables_each_checkpoint_is_full(tmp_path, caplog):
    dense = tf.get_variable("dense", [], initializer=tf.ones_initializer())
    saver = IncrementalSaver()
    assert "no dynamic or sharded tables" in caplog.text
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.track(session)
        for step in (1, 2):
            session.run(dense.assign(step))
            path = saver.save(session, f"{tmp_path}/model.ckpt", step)
        session.run(dense.assign(0))
        saver.restore(session, path)
        assert session.run(dense) == 2
    assert names(tmp_path) == ["model.ckpt-1", "model.ckpt-2"] and not names(tmp_path / ".incremental_checkpoint")


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="full_every is 0"):
        IncrementalSaver(full_every=0)
