"""Increments of sharded tables, in a job of one worker: chains, saves that fail, and damage."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import tensor_bundle_pb2

from lockstep._src.saving import bundle
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.placement import planner

ROWS, DIM = 50, 3


class Program:
    """A sharded table with a slot, and a step that trains the rows of some ids."""

    def __init__(self):
        with embedding_scope():
            self.table = tf.get_variable("user", [ROWS, DIM], initializer=tf.ones_initializer())
        self.ids = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(self.table, self.ids)))
        self.train = tf.train.AdagradOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
        self.saver = IncrementalSaver()
        self.other = tf.train.Saver()
        self.held = [variable.read_value() for variable in tf.global_variables()]


@pytest.fixture
def session():
    """Returns a session of a program, and the program, in a scope."""
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Program()
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        yield session, program


def _save(session, program, tmp_path, ids=()):
    if len(ids):
        session.run(program.train, {program.ids: ids})
    return program.saver.save(session, f"{tmp_path}/model.ckpt", session.run(tf.train.get_global_step()))


def _changed(path):
    return sorted(tf.train.load_checkpoint(path).get_tensor("user-changed-ids").tolist())


def _restored(path):
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Program()
        program.saver.restore(session, path)
        return session.run(program.held)


def _assert_restores(path, values):
    for restored, value in zip(_restored(path), values, strict=True):
        np.testing.assert_array_equal(restored, value)


def test_a_chain_has_the_rows_of_each_increment(session, tmp_path):
    base = _save(*session, tmp_path, [1, 2])
    assert _changed(_save(*session, tmp_path, [2, 7])) == [2, 7]
    assert _changed(_save(*session, tmp_path)) == []
    assert _changed(_save(*session, tmp_path, [49])) == [49]
    _assert_restores(base, session[0].run(session[1].held))


def test_a_save_by_another_saver_ends_the_chain(session, tmp_path):
    running, program = session
    _save(running, program, tmp_path, [1])
    running.run(program.train, {program.ids: [2]})
    program.other.save(running, f"{tmp_path}/elsewhere/best.ckpt")
    path = _save(running, program, tmp_path, [3])
    assert os.path.basename(path) == "model.ckpt-3"
    assert _changed(_save(running, program, tmp_path, [4])) == [4]
    _assert_restores(path, running.run(program.held))


# Promise (checkpoints.md): increments have the changed rows of sharded tables; any number of workers resumes from them.
def test_a_failed_increment_loses_no_changes(session, tmp_path):
    base = _save(*session, tmp_path, [1])
    first = _save(*session, tmp_path, [2])
    blocked = Path(os.path.dirname(first), "model.ckpt-1-to-3_temp")
    blocked.write_text("a file in the place of the folder that a save needs")
    with pytest.raises(tf.errors.OpError, match="model.ckpt-1-to-3"):
        _save(*session, tmp_path, [3])
    blocked.unlink()
    assert _changed(_save(*session, tmp_path, [4])) == [3, 4]
    _assert_restores(base, session[0].run(session[1].held))


def test_after_a_failed_full_save_the_next_checkpoint_is_full(session, tmp_path):
    _save(*session, tmp_path, [1])
    running, program = session
    running.run(program.train, {program.ids: [2]})
    (tmp_path / "best.ckpt.index").mkdir()  # in the place of a file: the save fails when all is written
    with pytest.raises(tf.errors.OpError, match="best.ckpt"):
        program.other.save(running, f"{tmp_path}/best.ckpt")
    path = _save(running, program, tmp_path, [3])
    assert os.path.basename(path) == "model.ckpt-3"
    _assert_restores(path, running.run(program.held))


def test_a_saver_that_omits_a_slot_is_named_once(tmp_path, caplog):
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Program()
        program.saver = IncrementalSaver(tf.train.Saver(tf.trainable_variables()))
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        paths = [_save(session, program, tmp_path, [step]) for step in (1, 2)]
    assert [os.path.basename(path) for path in paths] == ["model.ckpt-1", "model.ckpt-2"]
    (said,) = [
        record.getMessage()
        for record in caplog.records
        if "omits" in record.getMessage() or "does not save" in record.getMessage()
    ]
    assert "does not save user/Adagrad: no increment" in said


def test_training_continues_a_restored_chain(session, tmp_path):
    base = _save(*session, tmp_path, [1])
    _save(*session, tmp_path, [2])
    running, program = session
    running.run(program.train, {program.ids: [5]})
    program.saver.restore(running, base)
    path = _save(running, program, tmp_path, [3])
    assert path.endswith("model.ckpt-1-to-3") and _changed(path) == [3]
    _assert_restores(base, running.run(program.held))


def test_after_the_restore_of_a_full_checkpoint_changes_are_not_known(session, tmp_path):
    base = _save(*session, tmp_path, [1])
    running, program = session
    program.other.restore(running, base)
    program.saver.track(running)
    assert _save(running, program, tmp_path, [3]).endswith("model.ckpt-2")
    assert _changed(_save(running, program, tmp_path, [4])) == [4]


def _with(path, target, **tensors):
    """Writes a checkpoint with some other tensors."""
    reader = tf.train.load_checkpoint(path)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    values.update((name.replace("_", "-"), value) for name, value in tensors.items())
    values = {name: value for name, value in values.items() if value is not None}
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(
            tf.raw_ops.SaveV2(
                prefix=target,
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=list(values.values()),
            )
        )


def _change(path, tensors):
    """Replaces a checkpoint by one with some other tensors."""
    _with(path, f"{path}-changed", **tensors)
    for file in Path(path).parent.glob(f"{Path(path).name}-changed.*"):
        file.rename(f"{path}{file.suffix}")


def _claim(path, name, shape):
    """Gives a tensor another shape in the index of a checkpoint."""
    entries = bundle._read_table(f"{path}.index")
    entry = tensor_bundle_pb2.BundleEntryProto.FromString(entries[name.encode()])
    del entry.shape.dim[:]
    for size in shape:
        entry.shape.dim.add().size = size
    Path(f"{path}.index").write_bytes(bundle._table({**entries, name.encode(): entry.SerializeToString()}))


_IDS = np.array([2, ROWS], np.int64)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"user_changed_ids": _IDS, "user_changed_values": np.ones([2, DIM], np.float32)}, "has the id 50, wanted one"),
        ({"user_changed_values": np.ones([1, DIM + 1], np.float32)}, "user-changed-values' is float.1,4. in the"),
        ({"user_changed_values": None}, "user-changed-values' not found"),
        ({"user_changed_ids": _IDS[:, None]}, "user-changed-ids' is int64.2,1. in the checkpoint, wanted a list"),
        ({"user_changed_ids": _IDS.astype(np.int32)}, "user-changed-ids' is int32"),
        ({"user_changed_ids": np.zeros(ROWS + 1, np.int64)}, "user-changed-ids' has 51 ids in the .* at most 50"),
        ({"user_changed_ids": None}, "user' not found"),
        ({"lockstep_link": np.array([5, 6], np.int64)}, "builds on checkpoint id 6"),
    ],
)  # fmt: skip
def test_increments_that_do_not_fit_are_named(session, tmp_path, tensors, message):
    base = _save(*session, tmp_path, [1])
    _change(_save(*session, tmp_path, [2]), tensors)
    with pytest.raises(tf.errors.OpError, match=f"model.ckpt-1-to-2.*{message}"):
        _restored(base)


def test_an_increment_that_does_not_fit_one_table_changes_none(session, tmp_path):
    base = _save(*session, tmp_path, [1])
    running, program = session
    tables = [held for held in program.held if held.shape.rank]
    wanted = running.run(tables)
    _change(_save(*session, tmp_path, [2]), {"user/Adagrad_changed_values": np.ones([1, DIM + 1], np.float32)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="user/Adagrad-changed-values"):
        program.saver.restore(running, base)
    for value, before in zip(running.run(tables), wanted, strict=True):
        np.testing.assert_array_equal(value, before)


def test_a_damaged_increment_is_named(session, tmp_path):
    base = _save(*session, tmp_path, [1])
    data = Path(f"{_save(*session, tmp_path, [2])}.data-00000-of-00001")
    data.write_bytes(bytes(255 - byte for byte in data.read_bytes()))
    with pytest.raises(tf.errors.DataLossError, match="model.ckpt-1-to-2"):
        _restored(base)


def test_an_increment_alone_is_no_checkpoint(session, tmp_path):
    _save(*session, tmp_path, [1])
    path = _save(*session, tmp_path, [2])
    running, program = session
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="it is incremental; restore it with the incremental saver"
    ):
        program.other.restore(running, path)


class Placed:
    """Tables of several types whose rows are sharded or replicated, with a slot."""

    def __init__(self, placement, partitioner=None):
        planner._planner = planner.Planner(1)  # a planner keeps the place of a table of a known name
        with embedding_scope(placement=placement):
            variables = [
                tf.get_variable(dtype.name, [ROWS, DIM], dtype, tf.ones_initializer(), partitioner=partitioner)
                for dtype in (tf.float32, tf.float64, tf.bfloat16)
            ]
        rows = [tf.cast(tf.nn.embedding_lookup(each, [1, 40], "div"), tf.float32) for each in variables]
        step = tf.train.get_or_create_global_step()
        self.train = tf.train.AdagradOptimizer(0.1).minimize(sum(map(tf.reduce_sum, rows)), step)
        self.saver = IncrementalSaver()
        self.held = [tf.convert_to_tensor(each) for each in variables]


@pytest.mark.parametrize("partitioner", [None, tf.fixed_size_partitioner(3)], ids=["whole", "partitioned"])
@pytest.mark.parametrize(("before", "after"), [("rows", "replicated"), ("replicated", "rows")])
def test_increments_do_not_depend_on_the_placement(before, after, partitioner, tmp_path):
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Placed(before)
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        base = _save(session, program, tmp_path, ids=())
        for _ in range(2):
            session.run(program.train)
            path = _save(session, program, tmp_path)
        held = session.run(program.held)
    reader = tf.train.load_checkpoint(path)
    assert before == "replicated" or sorted(reader.get_tensor("bfloat16-changed-ids").tolist()) == [1, 40]
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Placed(after, partitioner)
        program.saver.restore(session, base if before == "rows" else path)
        restored = session.run([*program.held, tf.train.get_global_step()])
    assert restored.pop() == 2
    for value, wanted in zip(restored, held, strict=True):
        np.testing.assert_array_equal(value, wanted)


def _increment(tmp_path):
    """Saves sharded tables and an increment of them; returns the paths of both."""
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Placed("rows")
        session.run(tf.global_variables_initializer())
        program.saver.track(session)
        base = _save(session, program, tmp_path)
        session.run(program.train)
        return base, _save(session, program, tmp_path)


_REPLICATED = [
    ({"float32_changed_ids": np.array([2, ROWS], np.int64)}, "has the id 50, wanted one"),
    ({"float32_changed_values": np.ones([2, DIM + 1], np.float32)}, "float32-changed-values' is float.2,4. in the"),
    ({"float32_changed_values": None}, "float32-changed-values' not found"),
    ({"float32_changed_ids": np.array([[2], [3]])}, "float32-changed-ids' is int64.2,1. in the checkpoint"),
    ({"float32_changed_ids": np.zeros(ROWS + 1, np.int64)}, "float32-changed-ids' has 51 ids in the .* at most 50"),
    ({"float32_changed_ids": None}, "variable 'float32': tensor 'float32' not found"),
    ({"lockstep_link": np.array([5, 6], np.int64)}, "builds on checkpoint id 6, but the one before it"),
]


@pytest.mark.parametrize(("tensors", "message"), _REPLICATED)
def test_increments_that_do_not_fit_replicated_tables_are_named(tensors, message, tmp_path):
    base, increment = _increment(tmp_path)
    _change(increment, tensors)
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Placed("replicated")
        with pytest.raises(tf.errors.OpError, match=f"model.ckpt-0-to-1.*{message}"):
            program.saver.restore(session, base)


@pytest.mark.parametrize("placement", ["rows", "replicated"])
def test_an_increment_that_claims_more_changes_than_a_shape_can_have_is_damage(placement, tmp_path):
    base, increment = _increment(tmp_path)
    _claim(increment, "float32-changed-ids", [1 << 62])
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        program = Placed(placement)
        with pytest.raises(tf.errors.DataLossError, match=f"has {1 << 62} ids in the checkpoint, wanted at most 50"):
            program.saver.restore(session, base)


def test_a_variable_with_a_name_like_a_slots_is_saved_as_any_other(tmp_path):
    with tf.Graph().as_default(), scope(), tf.Session() as session:
        with embedding_scope():
            tf.get_variable("user", [ROWS, DIM])
        tf.get_variable("user/bias", [ROWS])
        tf.get_variable("user/counts", [ROWS], use_resource=False, trainable=False)
        saver = IncrementalSaver()
        session.run(tf.global_variables_initializer())
        saver.track(session)
        saver.save(session, f"{tmp_path}/model.ckpt", 1)
        shapes = tf.train.load_checkpoint(saver.save(session, f"{tmp_path}/model.ckpt", 2)).get_variable_to_shape_map()
    assert shapes == {
        "user-changed-ids": [0],
        "user-changed-values": [0, DIM],
        "user/bias": [ROWS],
        "user/counts": [ROWS],
        "lockstep-link": [2],
    }
