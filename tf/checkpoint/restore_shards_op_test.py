"""Tests of LockstepRestoreShards: any workers restore sharded tables that any workers, or plain TensorFlow, wrote."""

from __future__ import annotations

import functools
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.saving import shard_saveables
from lockstep._src.tables.sharded import Shard
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

DTYPES = ("float32", "bfloat16", "int64", "bool")
SHAPES = ([], [3])  # of rows


def whole(rows, shape, dtype):
    """Returns a table whose rows all differ, but for narrow types."""
    numbers = np.arange(rows * int(np.prod(shape)), dtype=np.int64).reshape([rows, *shape])
    return (numbers % 2 == 0) if dtype == "bool" else tf.cast(numbers % 251, dtype).numpy()


def saveable(name, table, block, first):
    """Returns this worker's rows of a table, as a saver holds them."""
    context.ensure_initialized()
    shard = Shard(len(table), context.rank, context.world_size, block, first)
    return types.SimpleNamespace(name=name, shard=shard, variable=tf.Variable(shard.pick(table)))


def saveables(rows, block, first):
    tables = {f"{dtype}/{len(shape)}": whole(rows, shape, dtype) for dtype in DTYPES for shape in SHAPES}
    return [saveable(name, table, block, first) for name, table in tables.items()]


def save(saved, prefix):
    nothing = dict.fromkeys(("variables", "own_variable_names", "own_variable_slices"), [])
    nothing |= dict.fromkeys(("tables", "table_names", "tensors", "own_tensor_names", "own_tensor_slices"), [])
    ops.lockstep_save_checkpoint(prefix, **shard_saveables.arguments(saved), **nothing)


def write(folder, rows, block, first):
    shard_saveables.PIECE_BYTES = 24  # of the widest rows one, of others several
    save(saveables(rows, block, first), f"{folder}/whole")


def written(folder, workers, rows, block=1, first=0):
    """Lets workers write the tables; returns the prefix of the whole checkpoint."""
    call_workers(functools.partial(write, str(folder), rows, block, first), workers)
    return f"{folder}/whole"


def restore(prefix, rows):
    """Restores into variables with other values, and compares them; with two placements."""
    shard_saveables.PIECE_BYTES = 40
    for block, first in ((1, 0), (4, context.world_size - 1)):
        saved = saveables(rows, block, first)
        expected = [one.variable.numpy() for one in saved]
        for one in saved:
            one.variable.assign(tf.zeros_like(one.variable))
        shard_saveables.restore(saved, prefix)
        for one, values in zip(saved, expected, strict=True):
            np.testing.assert_array_equal(one.variable.numpy(), values, err_msg=one.name)


@pytest.mark.parametrize(
    ("workers", "rows", "block", "first", "others"),
    [(1, 5, 1, 0, 3), (2, 9, 9, 1, 2), (3, 2, 1, 0, 1), (3, 20, 3, 2, 2), (4, 101, 1, 0, 3)],
)
def test_any_workers_restore_what_others_wrote(tmp_path, workers, rows, block, first, others):
    prefix = written(tmp_path, workers, rows, block, first)
    reader = tf.train.load_checkpoint(prefix)
    for dtype in DTYPES:
        for shape in SHAPES:
            np.testing.assert_array_equal(reader.get_tensor(f"{dtype}/{len(shape)}"), whole(rows, shape, dtype))
    call_workers(functools.partial(restore, prefix, rows), others)


def restore_from_stock(prefix, table):
    one = saveable("table", table, 1, 0)
    expected = one.variable.numpy()
    one.variable.assign(tf.zeros_like(one.variable))
    shard_saveables.restore([one], prefix)
    np.testing.assert_array_equal(one.variable.numpy(), expected)


@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 50]])
def test_slices_of_any_length_are_read(tmp_path, cuts):
    table = whole(64, [5], "float32")
    prefix, ranges = str(tmp_path / "stock"), list(itertools.pairwise([0, *cuts, 64]))
    slices = [f"64 5 {begin},{end - begin}:-" for begin, end in ranges] if cuts else [""]
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["table"] * len(slices),
        shape_and_slices=slices,
        tensors=[table[begin:end] for begin, end in ranges],
    )
    call_workers(functools.partial(restore_from_stock, prefix, table), 2)


def refused(prefix, data, content):
    """Tries to restore what does not fit, and damaged files; rank 1 reads the end of the file `data`."""
    context.ensure_initialized()

    def check(rows, message, kind):
        with pytest.raises(kind, match=f"checkpoint {prefix}: .*{message}"):
            shard_saveables.restore(saveables(rows, 1, 0), prefix)

    message = r"tensor 'float32/0' is float\[9\] in the checkpoint, wanted float\[8\]"
    check(8, message, tf.errors.InvalidArgumentError)
    damages = {
        "its checksum is wrong": content[:-1] + bytes([content[-1] ^ 1]),
        "the file ends after": content[:-1],
    }
    for message, damaged in damages.items():
        if context.rank == 0:
            data.write_bytes(damaged)
        ordered.barrier()
        check(9, f"rank 1: .*{data.name}: tensor .* {message}", tf.errors.DataLossError)


def test_what_does_not_fit_is_an_error_that_names_file_and_tensor(tmp_path):
    prefix = written(tmp_path, 2, 9)
    data = next(tmp_path.glob("whole.data-00001-*"))
    call_workers(functools.partial(refused, prefix, data, data.read_bytes()), 2)


def refuse_missing(prefix):
    with pytest.raises(tf.errors.NotFoundError, match=r"tensor 'other' not found in checkpoint"):
        shard_saveables.restore([saveable("other", whole(4, [], "int64"), 1, 0)], prefix)


def test_a_missing_tensor_is_an_error(tmp_path):
    call_workers(functools.partial(refuse_missing, written(tmp_path, 1, 4)), 1)
