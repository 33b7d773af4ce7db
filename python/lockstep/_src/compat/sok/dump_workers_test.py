"""Tests of dump and load by several ranks: dumps of 1, 2 and 3 ranks load on 1, 2 and 3, and errors are raised on all.

Row and slots of a key depend only on the key here, so the test needs no training, and each rank can check its own part.
"""

from __future__ import annotations

import contextlib
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import dump, files, job, rows, slots, together, variables
from lockstep._src.compat.sok.dump_test import BUILT_ONCE, make_optimizer
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.files_test import raw_file
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

SLOTS = {"m": 1, "v": 2}
DYNAMIC_KEYS = np.array([-5, 0, 3, 77, 12, 13, 2**30])
STATIC_ROWS = 11


# Promise (sok.md): files of dumps have SOK's bytes, load on any number of ranks, are complete or absent, and name their
# damage.
def test_dumps_of_any_number_of_ranks_load_on_any(tmp_path):
    dynamic_32 = (DYNAMIC_KEYS, "int32")
    write_by_numpy(tmp_path / "by_numpy", {"rows_0": (range(11), "int64"), "last_0": (range(11), "uint32")})
    write_by_numpy(tmp_path / "by_numpy", {"keys_0": (DYNAMIC_KEYS, "int64"), "short_0": dynamic_32})
    written = ["by_numpy"]
    for ranks in (1, 2, 3):
        written.append(f"by_{ranks}")
        call_workers(_dump_and_load, ranks, tmp_path, written, timeout_s=60)
        check_by_numpy(tmp_path / f"by_{ranks}", static_order=True)
    for ranks in (1, 2):
        call_workers(_load_all, ranks, tmp_path, written, timeout_s=60)
    check_by_numpy(tmp_path / "by_numpy", static_order=False)


def test_error_of_one_rank_is_raised_on_all(tmp_path):
    call_workers(_fail_in_turn, 3, tmp_path, timeout_s=60)


def test_wrong_arguments_of_one_rank_are_an_error_on_all(tmp_path):
    call_workers(_give_wrong_arguments_in_turn, 3, tmp_path, timeout_s=60)


# The format, read only by numpy.


def value(keys, number, dtype="float32"):
    """Returns the rows of keys in the weights (number 0) or in a slot."""
    keys = np.asarray(keys, np.int64)[:, None]
    return (keys % 1009 + 2000 * number + np.array([0.25, 0.5, 0.75])).astype(dtype)


def write_by_numpy(folder, tables):
    folder.mkdir(exist_ok=True)
    for table, (keys, key_type) in tables.items():
        keys = np.random.default_rng(7).permutation(keys)
        (folder / f"{table}-key").write_bytes(raw_file(0, key_type, keys))
        (folder / f"{table}-weight").write_bytes(raw_file(1, "float32", value(keys, 0)))
        for slot, number in SLOTS.items():
            (folder / f"{table}-Adam-{slot}").write_bytes(raw_file(2, "float32", value(keys, number), slot=slot))


def check_by_numpy(folder, static_order):
    """Checks a folder's files with a reader that uses nothing of files.py."""
    assert len(os.listdir(folder)) == 4 * (2 + len(SLOTS))
    for table, key_type in (("rows_0", "<i8"), ("last_0", "<u8"), ("keys_0", "<i8"), ("short_0", "<i4")):
        key_type = "<u4" if (table, static_order) == ("last_0", False) else key_type
        keys = np.frombuffer((folder / f"{table}-key").read_bytes()[296:], key_type)
        wanted = np.arange(STATIC_ROWS) if table in ("rows_0", "last_0") else np.sort(DYNAMIC_KEYS)
        ordered = static_order and table != "keys_0"
        np.testing.assert_array_equal(keys if ordered else np.sort(keys), wanted)
        for name, number in {"weight": 0, **{f"Adam-{slot}": number for slot, number in SLOTS.items()}}.items():
            got = np.frombuffer((folder / f"{table}-{name}").read_bytes()[296:], "<f4").reshape(-1, 3)
            np.testing.assert_array_equal(got, value(keys, number))


# Functions that run on workers.


def make_tables():
    """Returns a table of each kind: by rows, whole on the last rank, by keys, and with int32 keys whole on rank 0."""
    last = job.num_ranks() - 1
    return [
        variables.make(np.zeros([STATIC_ROWS, 3], np.float32), name="rows"),
        variables.make(np.zeros([STATIC_ROWS, 3], np.float32), name="last", mode=f"localized:{last}"),
        DynamicVariable(3, initializer="0", name="keys", var_type="hbm"),
        DynamicVariable(3, initializer="0", name="short", var_type="hbm", key_type=tf.int32, mode="localized:0"),
    ]


def own_keys(variable):
    """Returns the keys that this rank has to hold, ascending."""
    keys = np.sort(DYNAMIC_KEYS) if rows.is_dynamic(variable) else np.arange(STATIC_ROWS)
    if variable.target_gpu >= 0:
        return keys if variable.target_gpu == job.rank() else keys[:0]
    return keys[keys % job.num_ranks() == job.rank()]


def fill(tables, optimizer):
    slots.ensure(optimizer, tables)
    for table in tables:
        keys = own_keys(table).astype(table.key_type.as_numpy_dtype if rows.is_dynamic(table) else np.int64)
        if len(keys):
            rows.write(table, keys, value(keys, 0))
            for slot, number in SLOTS.items():
                slots.write(optimizer, table, slot, keys, value(keys, number))


def check(tables, optimizer):
    for table in tables:
        keys, weights = rows.read(table)
        np.testing.assert_array_equal(keys, own_keys(table), str(table))
        np.testing.assert_array_equal(weights, value(keys, 0), str(table))
        for slot, number in SLOTS.items():
            np.testing.assert_array_equal(slots.read(optimizer, table, slot), value(keys, number), f"{table} {slot}")


def _dump_and_load(folder, names):
    job.set_comm_tool("horovod")
    # Each rank sends a few rows in a round.
    files.CHUNK_BYTES = 300
    tables, optimizer = make_tables(), make_optimizer()
    fill(tables, optimizer)
    dump.dump(folder / names[-1], tables, optimizer)
    load_each(folder, names)


def _load_all(folder, names):
    job.set_comm_tool("horovod")
    load_each(folder, names)


def load_each(folder, names):
    for name in names:
        tables, optimizer = make_tables(), make_optimizer()
        dump.load(folder / name, tables, optimizer)
        check(tables, optimizer)


class Failing:
    """Replaces a function of a module by one that fails on a rank."""

    def __init__(self, module, name, rank):
        self._module, self._name, self._kept = module, name, getattr(module, name)
        if job.rank() == rank:
            setattr(module, name, self._fail)

    def _fail(self, *args):
        raise OSError(28, f"no space for {self._name}")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        setattr(self._module, self._name, self._kept)


def _fail_in_turn(folder):
    job.set_comm_tool("horovod")
    files.CHUNK_BYTES = 300
    tables, optimizer = make_tables(), make_optimizer()
    fill(tables, optimizer)
    for module, name, rank in (
        (dump.rows, "read", 1),
        (dump.slots, "read", 2),
        (dump.slots, "has", 1),
        (files.StagedFiles, "create", 2),  # of the table that is whole on the last rank
        (files.StagedFiles, "append", 0),
        (files.StagedFiles, "append", 2),
        (files.StagedFiles, "sync", 0),
    ):
        with Failing(module, name, rank), pytest.raises(OSError, match=f"no space for {name}") as caught:
            dump.dump(folder / "failed", tables, optimizer)
        assert job.rank() == rank or f"failed: rank {rank} failed: OSError" in str(caught.value)
        together.gather_counts(0)
        assert not os.listdir(folder / "failed")
    dump.dump(folder / "good", tables, optimizer)
    for module, name, rank in ((dump.slots, "ensure", 1), (dump.rows, "owns", 0), (dump.rows, "write", 2)):
        with Failing(module, name, rank), pytest.raises(OSError, match=f"no space for {name}"):
            dump.load(folder / "good", tables, optimizer)
    damage_of_one_rank(pathlib.Path(folder / "good"), tables[0])
    # After all these failures, the job continues.
    dump.dump(folder / "again", tables, optimizer)
    dump.load(folder / "again", tables, optimizer)
    check(tables, optimizer)


def _give_wrong_arguments_in_turn(folder):
    job.set_comm_tool("horovod")
    tables, optimizer = make_tables(), make_optimizer()
    fill(tables, optimizer)
    dump.dump(folder / "good", tables, optimizer)
    before = [rows.read(table) for table in tables]
    good = (folder / "good", tables, optimizer)
    for position, wrong, error, message in (
        (0, 3, TypeError, "os.PathLike object, not int"),
        (1, 3, TypeError, "got 3, wanted sok.Variable"),
        (2, "Adam", TypeError, "got str, wanted one of"),
        (2, [optimizer, optimizer], ValueError, "got a list of 2 optimizers"),
        (1, tables[::-1], ValueError, r"variables: rank 1 got \['short_0', .*wanted \['rows_0', .*, as on rank 0"),
        (2, None, ValueError, r"slots: rank 1 got None, wanted \['Adam', 'm', 'v'\], as on rank 0"),
    ):
        given = [wrong if job.rank() == 1 and i == position else one for i, one in enumerate(good)]
        for call in (dump.dump, dump.load):
            with pytest.raises(error, match=message):
                call(*given)
    for call in (dump.dump, dump.load):
        with pytest.raises(RuntimeError, match="graph mode, wanted eager"), graph_on_rank_1():
            call(*good)
    for kind in BUILT_ONCE:
        built_too_early_on_its_rank(folder, tables, kind)
    for table, (keys, weights) in zip(tables, before, strict=True):
        np.testing.assert_array_equal(rows.read(table)[0], keys)
        np.testing.assert_array_equal(rows.read(table)[1], weights)


def graph_on_rank_1():
    return tf.Graph().as_default() if job.rank() == 1 else contextlib.nullcontext()


def built_too_early_on_its_rank(folder, tables, kind):
    """Checks that all ranks report an optimizer that lacks a variable whose rows are only on the last rank."""
    rows_table, last_table = tables[:2]
    for built in (False, True):
        rows_table.assign(tf.zeros_like(rows_table))
        optimizer = BUILT_ONCE[kind]()
        if built:
            optimizer.build([rows_table])
            with pytest.raises(ValueError, match="got Adam that was built without 'last:0'") as caught:
                dump.load(folder / "good", [rows_table, last_table], optimizer)
            assert job.rank() == 2 or "rank 2 failed: ValueError" in str(caught.value)
            assert not rows_table.numpy().any()
        dump.load(folder / "good", [rows_table, last_table], BUILT_ONCE[kind]() if built else optimizer)


def damage_of_one_rank(folder, table):
    """Checks that all ranks report a key that only rank 1 holds."""
    keys = np.arange(STATIC_ROWS)
    keys[7] = 10
    if job.rank() == 0:
        header = (folder / "rows_0-key").read_bytes()[:296]
        (folder / "rows_0-key").write_bytes(header + keys.tobytes())
    together.gather_counts(0)
    with pytest.raises(ValueError, match=r"rows_0-key: got key 10 more than once, wanted each key once") as caught:
        dump.load(folder, table)
    assert job.rank() == 1 or "rank 1 failed: DumpFileError: " in str(caught.value)
