"""Tests of the moment of a save in the background: it saves what was there, regardless of later changes.

Rank 0 begins a save and changes its variable; only then rank 1 begins the save. So rank 0 reads nothing before.
"""

from __future__ import annotations

import functools
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep._src.saving import shard_saveables
from lockstep._src.saving.shard_saveables import ShardSaveable
from lockstep._src.tables.sharded import Shard
from lockstep.testing import call_workers
from lockstep.testing.launching import DEADLINE_S

pytestmark = pytest.mark.workers

ROWS, DIM = 2000, 4
TOUCHED = np.array([3, 3, 500, 999, 0])


def fused(
    variable,
    slot,
    rule="adagrad",
    hyperparameters=(0.1, 0.0),
    names=("learning_rate", "epsilon"),
    touched=TOUCHED,
    **attrs,
):
    """Makes a step of an optimizer in the op that changes rows in place."""
    ops.lockstep_sparse_update(
        [variable.handle],
        [slot.handle] if rule == "adagrad" else [],
        [tf.constant(h, tf.float32) for h in hyperparameters],
        [tf.ones([len(touched), DIM])],
        [tf.constant(touched)],
        names=["table"],
        rules=[rule],
        hyperparameter_names=list(names),
        **{"all_rows": [False], "dynamic": [False], "slot_names": [], "slot_initials": [], **attrs},
    )


def several_fused(variable, slot):
    for _ in range(3):
        fused(variable, slot)


def stock_sparse(variable, slot):
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=variable.handle,
        accum=slot.handle,
        lr=0.1,
        epsilon=0.0,
        grad=tf.ones([len(TOUCHED), DIM]),
        indices=TOUCHED,
    )


def stock_between_fused(variable, slot):
    fused(variable, slot)
    stock_sparse(variable, slot)
    fused(variable, slot)


def read_while_fused(variable, slot):
    value = variable.read_value()
    fused(variable, slot)
    del value


WRITERS = {
    "fused": fused,
    "several fused": several_fused,
    "fused, all rows": functools.partial(fused, all_rows=[True]),
    "stock sparse": stock_sparse,
    "stock between fused": stock_between_fused,
    "read while fused": read_while_fused,
    "scatter_add": lambda v, s: (v.scatter_nd_add(TOUCHED[:, None], tf.ones([len(TOUCHED), DIM])), s.assign_add(s)),
    "assign": lambda v, s: (v.assign(tf.zeros_like(v)), s.assign(tf.zeros_like(s))),
    "assign_add": lambda v, s: (v.assign_add(tf.ones_like(v)), s.assign_add(tf.ones_like(s))),
}


def values(offset):
    return np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM) + offset


def save(prefix, shards, variables):
    ops.lockstep_save_checkpoint(
        prefix,
        **shard_saveables.arguments(shards),
        variables=[v.handle for v in variables],
        own_variable_names=[f"whole-{i}" for i in range(len(variables))],
        own_variable_slices=[""] * len(variables),
        **dict.fromkeys(("tables", "table_names", "tensors", "own_tensor_names", "own_tensor_slices"), []),
        background=True,
    )


def variables_of(offset):
    """Returns a table and its slot, this rank's rows, as a program holds them that has made a step."""
    shard = Shard(ROWS, context.rank, context.world_size)
    made = [tf.Variable(shard.pick(values(offset + more))) for more in (0, 0.5)]
    fused(*made, hyperparameters=(0.0, 0.0))  # the variables are in "copy on read" mode then
    return shard, made


def save_while_changing(folder, writer):
    context.ensure_initialized()
    shard_saveables.PIECE_BYTES = 1000
    prefix = f"{folder}/model"
    shard, (table, slot) = variables_of(0)
    expected = [v.numpy() for v in variables_of(0)[1]]
    whole = [v for v in variables_of(7)[1] if context.rank == 0]  # saved by rank 0
    shards = []
    for name, variable in (("table", table), ("slot", slot)):
        saveable = ShardSaveable.__new__(ShardSaveable)
        saveable.name, saveable.shard, saveable.variable = name, shard, variable
        shards.append(saveable)
    alike = variables_of(0)[1]  # changed in the same way, without a save
    before_whole = [v.numpy() for v in whole]
    if context.rank == 0:
        save(prefix, shards, whole)
        for pair in ((table, slot), alike, whole):
            WRITERS[writer](*pair)
    ordered.barrier()
    if context.rank != 0:
        save(prefix, shards, whole)
    while not library.background_has_ended(library.engine_number(), 1.0):
        pass
    for changed, other in zip((table, slot), alike, strict=True):
        np.testing.assert_array_equal(changed.numpy(), other.numpy())
    if context.rank == 0:
        reader = tf.train.load_checkpoint(prefix)
        for name, rows in zip(("table", "slot"), expected, strict=True):
            np.testing.assert_array_equal(reader.get_tensor(name)[:: context.world_size], rows)
        for i, rows in enumerate(before_whole):
            np.testing.assert_array_equal(reader.get_tensor(f"whole-{i}"), rows)
        assert not np.array_equal(table.numpy(), expected[0])


# Promise (checkpoints.md): a save has the values of its step, regardless of the operations that change variables
# meanwhile.
@pytest.mark.parametrize("writer", WRITERS)
def test_a_save_has_the_values_of_its_begin(tmp_path, writer):
    call_workers(functools.partial(save_while_changing, str(tmp_path), writer), 2, timeout_s=DEADLINE_S)


def address(variable):
    """Returns where a variable's memory is. Beside a save, a read of it shares this memory."""
    return variable.read_value()._numpy_internal().__array_interface__["data"][0]


def update_beside_saves(folder):
    context.ensure_initialized()
    local = 1_500_000  # rows; copies of some would be noticed, and the end of a save has much memory to give back
    table, slot = (tf.Variable(tf.fill([local, DIM], value)) for value in (1.0, 0.5))
    fused(table, slot)
    shards = []
    for name, variable in (("table", table), ("slot", slot)):
        saveable = ShardSaveable.__new__(ShardSaveable)
        saveable.name, saveable.shard, saveable.variable = (
            name,
            Shard(local * context.world_size, context.rank, context.world_size),
            variable,
        )
        shards.append(saveable)
    found = []
    for number in range(4):
        save(f"{folder}/model-{number}", shards, [])
        found.append([address(table), address(slot)])
        fused(table, slot, touched=np.arange(local))  # copies most rows aside
        while not library.background_has_ended(library.engine_number(), 0):
            fused(table, slot)
    np.testing.assert_array_equal(found[1:], found[:-1])


# Promise (checkpoints.md): an update copies no table while a save runs; a resumed session allocates the memory of its
# saves when it starts.
def test_an_update_copies_no_variable_at_any_moment_of_a_save(tmp_path):
    call_workers(functools.partial(update_beside_saves, str(tmp_path)), 2, timeout_s=DEADLINE_S)


def resident_bytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def take_memory_first(folder):
    context.ensure_initialized()
    weights = tf.Variable(tf.ones([1 << 25]))  # 128 MiB
    size = weights.shape[0] * 4
    begin = resident_bytes()
    save("", [], [weights])
    assert library.background_has_ended(library.engine_number(), 0)
    taken = resident_bytes()
    assert taken - begin > 0.9 * size
    save(f"{folder}/model", [], [weights] if context.rank == 0 else [])
    weights.assign_add(tf.ones_like(weights))
    while not library.background_has_ended(library.engine_number(), 1.0):
        pass
    ordered.barrier()
    np.testing.assert_array_equal(tf.train.load_checkpoint(f"{folder}/model").get_tensor("whole-0"), 1)


# Promise (checkpoints.md): an update copies no table while a save runs; a resumed session allocates the memory of its
# saves when it starts.
def test_a_save_without_a_name_takes_the_memory_for_later_ones(tmp_path):
    call_workers(functools.partial(take_memory_first, str(tmp_path)), 2, timeout_s=DEADLINE_S)
    assert {path.name for path in tmp_path.iterdir()} == {"model.index", "model.data-00000-of-00001"}


def fail_on_one(folder):
    context.ensure_initialized()
    shard, (table, _) = variables_of(0)
    saveable = ShardSaveable.__new__(ShardSaveable)
    saveable.name, saveable.shard, saveable.variable = "table", shard, table
    save(f"{folder}/nowhere/m" if context.rank == 1 else f"{folder}/m", [saveable], [])
    with pytest.raises(tf.errors.OpError, match=r"rank 1: .*nowhere/m_temp; Not a directory"):
        while not library.background_has_ended(library.engine_number(), 1.0):
            pass
    assert library.background_has_ended(library.engine_number(), 0)  # the error is raised once
    ordered.barrier()  # steps continue


# Promise (checkpoints.md): a save that fails is an error of a later step, on all workers.
def test_an_error_of_one_rank_is_one_of_all(tmp_path):
    (tmp_path / "nowhere").write_text("")
    call_workers(functools.partial(fail_on_one, str(tmp_path)), 2, timeout_s=DEADLINE_S)
