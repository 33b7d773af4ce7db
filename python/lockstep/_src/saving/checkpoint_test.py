"""Tests of savers on one worker, and of what a job's savers do with tables that workers divide."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training import saver as tf_saver

from lockstep._src.engine.context import context
from lockstep._src.saving import bundle, checkpoint
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables import dynamic
from lockstep.launch.base import saved_files
from lockstep.testing import call_workers
from lockstep.testing.crash_points import crash_at

MATRIX = np.arange(10, dtype=np.float32).reshape(5, 2)


@pytest.fixture(name="session")
def _session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def made(value=3.0):
    return tf.get_variable("value", initializer=value, use_resource=True)


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
@pytest.mark.parametrize("where", ["scope", "class"])
def test_plain_tensorflow_reads_a_checkpoint_of_which_nothing_is_left_aside(tmp_path, session, where, sharded):
    value = made()
    session.run(value.initializer)
    if where == "scope":
        with scope():
            saver = tf.train.Saver(sharded=sharded)
    else:
        saver = checkpoint.Saver(sharded=sharded)
    path = saver.save(session, f"{tmp_path}/new/model.ckpt", 7)
    assert path == f"{tmp_path}/new/model.ckpt-7" == tf.train.latest_checkpoint(f"{tmp_path}/new")
    assert tf.train.load_variable(path, "value") == 3.0
    assert names(tmp_path / "new") == {
        "checkpoint",
        *(f"model.ckpt-7.{end}" for end in ("index", "meta", "data-00000-of-00001")),
    }
    session.run(value.assign(5.0))
    saver.restore(session, path)
    assert session.run(value) == 3.0


def test_a_checkpoint_of_plain_tensorflow_is_restored(tmp_path, session):
    value = made()
    session.run(value.initializer)
    path = tf.train.Saver().save(session, f"{tmp_path}/model.ckpt")
    session.run(value.assign(5.0))
    checkpoint.Saver().restore(session, path)
    assert session.run(value) == 3.0


@pytest.mark.parametrize(
    ("options", "arguments", "kept"),
    [
        ({}, {}, 5),
        ({"keep_checkpoint_max": 2}, {}, 2),
        ({"keep_checkpoint_max": 2}, {"max_to_keep": 3}, 3),
    ],
    ids=["TensorFlow's default", "the option", "the argument"],
)
def test_as_many_checkpoints_are_kept_as_the_options_or_the_arguments_say(tmp_path, session, options, arguments, kept):
    session.run(made().initializer)
    with scope(**options):
        saver = tf.train.Saver(**arguments)
    for step in range(6):
        saver.save(session, f"{tmp_path}/model.ckpt", step, write_meta_graph=False)
    assert len([name for name in names(tmp_path) if name.endswith(".index")]) == kept


def test_a_position_of_an_argument_counts_as_its_name(session):
    made()
    with scope(keep_checkpoint_max=2):
        assert tf.train.Saver(None, False, False, 4).saver_def.max_to_keep == 4


@pytest.mark.parametrize("in_scope", [False, True], ids=["outside", "scope"])
def test_positional_arguments_of_save_keep_their_meaning(tmp_path, session, in_scope):
    session.run(made().initializer)
    if in_scope:
        with scope():
            saver = tf.train.Saver()
    else:
        saver = tf.train.Saver()
    path = saver.save(session, f"{tmp_path}/model.ckpt", 3, "state", "graph", True, True)
    assert path == f"{tmp_path}/model.ckpt-3"
    assert {"state", "model.ckpt-3.graph"} <= names(tmp_path) and "checkpoint" not in names(tmp_path)


def test_outside_of_scopes_only_savers_of_dynamic_tables_are_the_jobs(session):
    with tf.Graph().as_default():
        made()
        assert not isinstance(tf.train.Saver()._builder, checkpoint.SaverBuilder)
    table = dynamic.get_embedding_variable("user", 2)
    value = made()
    assert isinstance(tf.train.Saver()._builder, checkpoint.SaverBuilder)
    assert isinstance(tf.train.Saver([table])._builder, checkpoint.SaverBuilder)
    assert not isinstance(tf.train.Saver([value])._builder, checkpoint.SaverBuilder)


def test_one_worker_may_still_write_the_old_format(tmp_path, session):
    session.run(made().initializer)
    with scope():
        saver = tf.train.Saver(write_version=tf.train.SaverDef.V1)
    assert os.path.exists(saver.save(session, f"{tmp_path}/model.ckpt", write_meta_graph=False))


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_checkpoint(tmp_path, session):
    (tmp_path / "file").write_text("")
    session.run(made().initializer)
    saver = checkpoint.Saver()
    with pytest.raises(tf.errors.OpError, match=f"{tmp_path}/file/model.ckpt.* cannot be saved"):
        saver.save(session, f"{tmp_path}/file/model.ckpt", 4)


def test_a_checkpoint_that_is_not_there_is_an_error_that_names_it(tmp_path, session):
    made()
    with pytest.raises((ValueError, tf.errors.OpError), match=f"{tmp_path}/model.ckpt"):
        checkpoint.Saver().restore(session, f"{tmp_path}/model.ckpt")


def test_a_failed_save_leaves_the_checkpoint_before_it(tmp_path, session):
    value = made()
    bad = tf.get_variable("bad", initializer=1.0, use_resource=True)
    saver = checkpoint.Saver()
    session.run([value.initializer, bad.initializer])
    path = saver.save(session, f"{tmp_path}/model.ckpt")
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    # A variable that is not initialized fails the step in which all are written.
    session.run(tf.raw_ops.DestroyResourceOp(resource=bad.handle))
    with pytest.raises(tf.errors.OpError, match="bad"):
        saver.save(session, f"{tmp_path}/model.ckpt")
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert tf.train.load_variable(path, "bad") == 1.0


def test_the_default_saver_is_added_once(session):
    made()
    checkpoint.replace_default_saver()
    (saver,) = session.graph.get_collection(tf.GraphKeys.SAVERS)
    assert isinstance(saver, checkpoint.Saver)
    checkpoint.replace_default_saver()
    assert session.graph.get_collection(tf.GraphKeys.SAVERS) == [saver]
    session.graph.add_to_collection(tf.GraphKeys.SAVERS, tf_saver.Saver())
    with pytest.raises(ValueError, match="replace_default_saver: the graph has 2 savers, wanted at most one"):
        checkpoint.replace_default_saver()


# The numbers of rows of variables: two tables that are divided; a small table and a vector that each worker has whole.
TABLES = {"float32": 5, "float16": 5, "small": 2, "vector": 5}
DIVIDED = ("float32", "float16")


def logical(name):
    """Returns a table's rows, of all workers together."""
    rows = MATRIX[: TABLES[name], 0] if name == "vector" else MATRIX[: TABLES[name]]
    return rows.astype(np.float16 if name == "float16" else np.float32)


def tables(factor=1):
    """Makes the tables, which begin with their rows times `factor`."""
    with embedding_scope():
        return {name: tf.get_variable(name, initializer=factor * logical(name)) for name in TABLES}


def own_rows(name, table):
    """Returns the rows of a variable that this worker has."""
    return table.local_value() if name in DIVIDED else table.read_value()


def save_and_restore(folder):
    """Returns this worker's rows as saved, as restored, and as initialized from the checkpoint; and an error."""
    context.ensure_initialized()
    with tf.Graph().as_default(), tf.Session() as session:
        before = tf.train.Saver([made()])
        session.graph.add_to_collection(tf.GraphKeys.SAVERS, before)
        try:
            checkpoint.replace_default_saver()
        except RuntimeError as error:
            refused = str(error)
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        shards = tables()
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        own = {name: own_rows(name, shard) for name, shard in shards.items()}
        had = session.run(own)
        path = saver.save(session, f"{folder}/model.ckpt", 3)
        session.run([tf.raw_ops.AssignVariableOp(resource=shards[name].handle, value=had[name] * 0) for name in had])
        saver.restore(session, path)
        restored = session.run(own)
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        shards = tables(factor=0)
        tf.train.init_from_checkpoint(path, {"/": "/"})
        session.run(tf.global_variables_initializer())
        return had, restored, session.run({name: own_rows(name, s) for name, s in shards.items()}), path, refused


@pytest.fixture(name="job", scope="module")
def _job(tmp_path_factory):
    return call_workers(save_and_restore, 3, str(tmp_path_factory.mktemp("job")), timeout_s=120)


@pytest.mark.workers
@pytest.mark.parametrize("name", TABLES)
def test_a_variable_is_one_tensor_of_its_logical_shape(job, name):
    stored = tf.train.load_variable(job[0][3], name)
    assert stored.dtype == logical(name).dtype
    np.testing.assert_array_equal(stored, logical(name))
    for rank, (had, *_) in enumerate(job):
        own = logical(name)[rank :: len(job)] if name in DIVIDED else logical(name)
        np.testing.assert_array_equal(had[name], own)


@pytest.mark.workers
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("place", [1, 2], ids=["restored", "initialized from the checkpoint"])
def test_each_worker_reads_the_rows_that_it_owns(job, name, place):
    for results in job:
        np.testing.assert_array_equal(results[place][name], results[0][name])


@pytest.mark.workers
def test_a_saver_from_outside_of_the_scope_is_refused_in_a_job(job):
    for *_, refused in job:
        assert refused == (
            "replace_default_saver: the graph's saver was made outside of a scope; make it as hb.train.Saver"
        )


def save_step_7(folder, number, point="", passes=1):
    """Saves a variable and a sharded table with the value `number` as step 7; dies at a point of the save, if given."""
    with tf.Graph().as_default(), scope():
        with embedding_scope():
            table = tf.get_variable("table", [50, 2], initializer=tf.constant_initializer(number), use_resource=True)
        made(float(number))
        saver = tf.train.Saver()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.nn.embedding_lookup(table, [1]))
            if point:
                crash_at(point, passes)
            saver.save(session, f"{folder}/model.ckpt", 7)


def values_of(path):
    """Returns the distinct values of a checkpoint, by plain TensorFlow."""
    reader = tf.train.load_checkpoint(path)
    return {float(v) for name in ("value", "table") for v in np.unique(reader.get_tensor(name))}


def files_of_step_7(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("model.ckpt-7."))


# Promise (checkpoints.md): a checkpoint of the same name is there at every moment of a save; no files of another number
# of workers stay.
@pytest.mark.workers
@pytest.mark.parametrize(
    ("point", "passes", "is_new"),
    [
        ("commit: merged", 1, False),
        ("commit: synced", 1, False),
        ("commit: file renamed", 1, False),
        ("commit: file renamed", 2, True),
        ("commit: place synced", 1, True),
        ("commit: aside removed", 1, True),
    ],
)
def test_a_checkpoint_of_the_same_name_is_there_at_every_moment_of_a_save(point, passes, is_new, tmp_path):
    folder, prefix = str(tmp_path), f"{tmp_path}/model.ckpt-7"
    call_workers(save_step_7, 1, folder, 1, timeout_s=60)
    (outcome,) = call_workers(save_step_7, 1, folder, 2, point, passes, timeout_s=60, check=False)
    assert outcome.exit_code == -signal.SIGKILL, outcome
    assert tf.train.latest_checkpoint(folder) == prefix
    assert values_of(prefix) == {2.0 if is_new else 1.0}
    assert saved_files.is_complete(f"{prefix}.index")


# Promise (checkpoints.md): a checkpoint of the same name is there at every moment of a save; no files of another number
# of workers stay.
@pytest.mark.workers
def test_a_save_of_the_same_name_by_any_number_of_workers_leaves_only_its_own_files(tmp_path):
    folder, prefix = str(tmp_path), f"{tmp_path}/model.ckpt-7"
    for number, workers in enumerate((2, 2, 3, 1, 1, 2)):
        call_workers(save_step_7, workers, folder, number, timeout_s=120)
        assert values_of(prefix) == {float(number)}, (number, workers)
        header, _ = bundle.read_index(prefix)
        data = [f"model.ckpt-7.data-{i:05d}-of-{header.num_shards:05d}" for i in range(header.num_shards)]
        assert files_of_step_7(tmp_path) == [*data, "model.ckpt-7.index", "model.ckpt-7.meta"], (number, workers)
        assert header.num_shards <= workers + 1 and saved_files.is_complete(f"{prefix}.index")
