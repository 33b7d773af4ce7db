"""Tests of LockstepSaveCheckpoint on two workers: plain TensorFlow reads what they save together."""

import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import reported_by_case, run_cases, tables

SIZE, ROWS, DIM = 2, 7, 3
TABLE = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
# The folder of the checkpoints, the same on both workers.
folder = pathlib.Path()


def own_rows(table=TABLE, block=1, first=0):
    ids = np.arange(len(table))
    return tf.Variable(table[(ids // block + first) % SIZE == context.rank])


def save(prefix, variables=(), shards=(), dynamic=(), tensors=(), **more):
    """Saves values by name; whole variables and tensors have a slice, "" for all of them.

    Args:
      prefix: the name of the checkpoint.
      variables: names, slices and variables that this worker saves whole.
      shards: names and variables with this worker's rows of tables like TABLE.
      dynamic: names and handles of dynamic tables.
      tensors: names, slices and tensors.
      **more: other attributes.
    """
    arguments = {
        "variables": [variable.handle for _, _, variable in variables],
        "own_variable_names": [name for name, _, _ in variables],
        "own_variable_slices": [part for _, part, _ in variables],
        "shards": [variable.handle for _, variable in shards],
        "shard_names": [name for name, _ in shards],
        "shard_dtypes": [variable.dtype for _, variable in shards],
        "shard_shapes": [TABLE.shape for _ in shards],
        "blocks": [1 for _ in shards],
        "first_ranks": [0 for _ in shards],
        "tables": [table for _, table in dynamic],
        "table_names": [name for name, _ in dynamic],
        "tensors": [tensor for _, _, tensor in tensors],
        "own_tensor_names": [name for name, _, _ in tensors],
        "own_tensor_slices": [part for _, part, _ in tensors],
    }
    prefix = str(folder / prefix)
    assert ops.lockstep_save_checkpoint(prefix, **{**arguments, **more}).numpy().decode() == prefix
    return prefix


def read(prefix, name):
    return tf.train.load_checkpoint(prefix).get_tensor(name)


def rows_of_all_ranks_are_one_tensor():
    for piece_bytes in (0, 24):
        prefix = save("rows", shards=[("table", own_rows()), ("other", own_rows(TABLE + 1))], piece_bytes=piece_bytes)
        ordered.barrier()
        np.testing.assert_array_equal(read(prefix, "table"), TABLE)
        np.testing.assert_array_equal(read(prefix, "other"), TABLE + 1)
        ordered.barrier()


def blocks_may_begin_on_any_rank():
    rows = own_rows(block=2, first=1)
    prefix = save("blocks", shards=[("table", rows)], blocks=[2], first_ranks=[1])
    ordered.barrier()
    np.testing.assert_array_equal(read(prefix, "table"), TABLE)


def variables_and_tensors_of_each_rank_are_saved():
    rank = context.rank
    part = f"{2 * SIZE} 3 {2 * rank},2:0,3"
    value = tf.Variable(np.full([2, 3], rank, np.int64))
    words = tf.constant(["a", "b\0"])
    prefix = save(
        "own", variables=[("parts", part, value)], tensors=[(f"words_{rank}", "", words), ("x", "", 1.5)][: 2 - rank]
    )
    ordered.barrier()
    np.testing.assert_array_equal(read(prefix, "parts"), np.repeat([0, 1], 2)[:, None] * np.ones(3))
    assert read(prefix, "words_0").tolist() == read(prefix, "words_1").tolist() == [b"a", b"b\0"]
    assert read(prefix, "x") == 1.5


def keys_of_all_ranks_are_one_table():
    table = tables.make(2)
    keys = tf.range(4, dtype=tf.int64) * SIZE + context.rank
    rows = tf.cast(tf.stack([keys, -keys], axis=1), tf.float32)
    nothing = tf.zeros([0], tf.int64)
    ops.lockstep_dynamic_table_insert(table, keys, rows, nothing, nothing)
    for part_rows in (0, 1):
        prefix = save("keys", dynamic=[("user", table)], part_rows=part_rows)
        ordered.barrier()
        found = dict(zip(read(prefix, "user-keys").tolist(), read(prefix, "user-values").tolist(), strict=True))
        assert found == {key: [key, -key] for key in range(4 * SIZE)}
        ordered.barrier()


def a_save_in_the_background_has_the_values_of_its_beginning():
    rows = own_rows()
    prefix = save("background", shards=[("table", rows)], background=True)
    rows.assign(tf.zeros_like(rows))
    while not library.background_has_ended(library.engine_number(), 1.0):
        pass
    ordered.barrier()
    np.testing.assert_array_equal(read(prefix, "table"), TABLE)


def what_does_not_fit_is_refused_on_all_ranks():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"rank 1: .*table 'table': its variable is float\[2,3\], wanted"
    ):
        save("wrong", shards=[("table", own_rows() if context.rank == 0 else own_rows(TABLE[:5]))])
    with pytest.raises(tf.errors.FailedPreconditionError, match="in blocks of 1 from rank 1 on"):
        save("wrong", shards=[("table", own_rows(first=context.rank))], first_ranks=[context.rank])
    with pytest.raises(tf.errors.FailedPreconditionError, match="table 'table': its changes since the last checkpoint"):
        save("wrong", shards=[("table", own_rows())], changes=True)
    never = ops.lockstep_dynamic_table(dim=2, shared_name="never created")
    with pytest.raises(tf.errors.FailedPreconditionError, match="'never created' has not been initialized"):
        save("wrong", dynamic=[("user", never)])


def an_error_of_one_rank_is_raised_on_all():
    (folder / "file").touch()
    prefix = "file/a" if context.rank == 0 else "other"
    with pytest.raises(tf.errors.OpError, match="rank 0: .*file/a.*Not a directory"):
        save(prefix, shards=[("table", own_rows())])


CASES = [
    rows_of_all_ranks_are_one_tensor,
    blocks_may_begin_on_any_rank,
    variables_and_tensors_of_each_rank_are_saved,
    keys_of_all_ranks_are_one_table,
    a_save_in_the_background_has_the_values_of_its_beginning,
    what_does_not_fit_is_refused_on_all_ranks,
    an_error_of_one_rank_is_raised_on_all,
]


def all_cases():
    global folder
    context.ensure_initialized()
    with tempfile.TemporaryDirectory() as own:
        name = tf.io.decode_raw(own if context.rank == 0 else "", tf.uint8)
        folder = pathlib.Path(bytes(ordered.allgather(name).numpy()).decode())
        run_cases(CASES, lambda name: ordered.barrier(name=name))


test_on_two_workers = reported_by_case(all_cases, CASES, SIZE)


@pytest.mark.parametrize(
    ("prefix", "changes", "message"),
    [
        ("", {}, "the checkpoint has no name"),
        ("model", {"own_tensor_names": ["a"]}, "the lists of arguments have different lengths"),
        ("model", {"own_tensor_slices": [""]}, "the lists of arguments have different lengths"),
        ("model", {"table_names": ["a"]}, "the lists of arguments have different lengths"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, prefix, changes, message):
    context.ensure_initialized()
    lists = ("variables", "shards", "tables", "tensors", "own_variable_names", "own_variable_slices", "shard_names")
    lists += ("shard_dtypes", "shard_shapes", "blocks", "first_ranks", "table_names", "own_tensor_names")
    nothing = dict.fromkeys((*lists, "own_tensor_slices"), [])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.lockstep_save_checkpoint(prefix and f"{tmp_path}/{prefix}", **{**nothing, **changes})
