"""Tests of dump and load in one process, against files that numpy reads and writes independently."""

from __future__ import annotations

import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import dump, files, job, optimizers, rows, slots, variables
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.files_test import raw_file, without_dump
from lockstep._src.engine import whole_files


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")


def make_optimizer(name="Adam", **options):
    """Returns a wrapper of one of Keras' legacy optimizers."""
    return optimizers.wrap(getattr(keras2().optimizers.legacy, name)(0.1, **options))


def keras2():
    return tf.keras if hasattr(tf.keras, "__internal__") else pytest.importorskip("tf_keras")


# Optimizers that learn all their variables when they are built.
BUILT_ONCE = {"Keras 2": lambda: keras2().optimizers.Adam(0.1)}
if not hasattr(tf.keras, "__internal__"):
    BUILT_ONCE["Keras 3"] = lambda: tf.keras.optimizers.Adam(0.1)


def static(name, shape=(4, 2), mode=None, dtype=tf.float32):
    return variables.make(np.zeros(shape), mode=mode, name=name, dtype=dtype)


def dynamic(name, dimension=2, **options):
    return DynamicVariable(dimension, initializer="0", name=name, var_type="hbm", **options)


def table_of(variable):
    return files.table_name(variable.name)


def write_files(folder, variable, keys, weights, key_type="int64", dtype="float32", **slot_values):
    """Writes a table as the original does, with blanks in place of its name."""
    table = table_of(variable)
    (folder / f"{table}-key").write_bytes(raw_file(0, key_type, keys))
    (folder / f"{table}-weight").write_bytes(raw_file(1, dtype, weights))
    for slot, values in slot_values.items():
        (folder / f"{table}-Adam-{slot}").write_bytes(raw_file(2, dtype, values, slot=slot))


def rows_by_key(variable):
    keys, values = rows.read(variable)
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def slot_by_key(optimizer, variable, slot):
    return dict(zip(rows.read(variable)[0].tolist(), slots.read(optimizer, variable, slot).tolist(), strict=True))


def fill(variable, keys, optimizer=None):
    """Gives keys the rows (key, 2), and the slots m and v the rows (key, 3) and (key, 4)."""
    keys = np.asarray(keys, np.int64 if not rows.is_dynamic(variable) else variable.key_type.as_numpy_dtype)
    rows.write(variable, keys, value(keys, 2))
    if optimizer is not None:
        slots.ensure(optimizer, [variable])
        slots.write(optimizer, variable, "m", keys, value(keys, 3))
        slots.write(optimizer, variable, "v", keys, value(keys, 4))


def value(keys, number):
    return np.stack([np.asarray(keys), np.full(len(keys), number)], 1).astype(np.float32)


@pytest.mark.parametrize(
    ("make", "key_type"),
    [
        (lambda: static("by_rows"), "int64"),
        (lambda: static("whole", mode="localized:0"), "uint64"),
        (lambda: dynamic("long"), "int64"),
        (lambda: dynamic("short", key_type=tf.int32), "int32"),
        (lambda: dynamic("on_a_rank", mode="localized:0"), "int64"),
    ],
)
def test_files_have_exactly_the_bytes_of_the_format(tmp_path, make, key_type, capfd):
    variable, optimizer, keys = make(), make_optimizer(), [0, 1, 2, 3]
    fill(variable, keys[::-1], optimizer)
    dump.dump(tmp_path / "made" / "here", (variable,), [optimizer])
    table = table_of(variable)
    wanted = {
        f"{table}-key": raw_file(0, key_type, keys, table),
        f"{table}-weight": raw_file(1, "float32", value(keys, 2), table),
        f"{table}-Adam-m": raw_file(2, "float32", value(keys, 3), table, "m"),
        f"{table}-Adam-v": raw_file(2, "float32", value(keys, 4), table, "v"),
    }
    got = {path.name: without_dump(path.read_bytes()) for path in (tmp_path / "made" / "here").iterdir()}
    assert got == wanted
    assert f"[SOK INFO] SOK dump weight in path: {tmp_path}/made/here  success!\n" in capfd.readouterr().out


@pytest.mark.parametrize(("key_type", "dtype"), [("int64", "float32"), ("uint64", "float64"), ("uint32", "float16")])
def test_files_of_another_writer_load_in_any_order_of_keys(tmp_path, key_type, dtype, monkeypatch, capfd):
    monkeypatch.setattr(files, "CHUNK_BYTES", 40)
    keys = [2, 0, 3, 1]
    for variable in (static("s"), static("l", mode="localized:0"), dynamic("d"), dynamic("i", key_type=tf.int32)):
        optimizer = make_optimizer()
        write_files(tmp_path, variable, keys, value(keys, 5), key_type, dtype, m=value(keys, 6), v=value(keys, 7))
        dump.load(str(tmp_path), variable, optimizer)
        assert rows_by_key(variable) == {key: [key, 5] for key in keys}
        assert slot_by_key(optimizer, variable, "m") == {key: [key, 6] for key in keys}
        assert slot_by_key(optimizer, variable, "v") == {key: [key, 7] for key in keys}
    assert f"[SOK INFO] SOK load weight from path: {tmp_path}  success!\n" in capfd.readouterr().out


def test_dynamic_table_keeps_keys_that_the_file_lacks(tmp_path):
    variable = dynamic("merged")
    fill(variable, [1, 2])
    write_files(tmp_path, variable, [2, 2**40, -7], value([2, 4, 6], 5))
    dump.load(tmp_path, [variable])
    assert rows_by_key(variable) == {1: [1, 2], 2: [2, 5], 2**40: [4, 5], -7: [6, 5]}


def test_tables_change_their_kind_between_dump_and_load(tmp_path):
    fill(old := dynamic("t"), range(4))
    dump.dump(tmp_path, old)
    new = static("t", mode="localized:0")
    assert table_of(new) == table_of(old)
    dump.load(tmp_path, new)
    np.testing.assert_array_equal(new.numpy(), value(range(4), 2))
    dump.dump(tmp_path, new)
    dump.load(tmp_path, third := dynamic("t"))
    assert rows_by_key(third) == rows_by_key(old)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_types_of_values_are_kept(tmp_path, dtype):
    variable = static("typed", dtype=tf.as_dtype(dtype))
    variable.assign(np.arange(8).reshape(4, 2) / 7)
    before = variable.numpy()
    dump.dump(tmp_path, variable)
    assert without_dump((tmp_path / "typed_0-weight").read_bytes()) == raw_file(1, dtype, before, "typed_0")
    variable.assign(np.zeros([4, 2]))
    dump.load(tmp_path, variable)
    np.testing.assert_array_equal(variable.numpy(), before)


def test_optimizer_without_slots_writes_none_and_needs_none(tmp_path):
    variable = static("plain")
    for optimizer in (make_optimizer("SGD"), make_optimizer(), [], ()):
        dump.dump(tmp_path, variable, optimizer)
    assert sorted(os.listdir(tmp_path)) == ["plain_0-key", "plain_0-weight"]
    dump.load(tmp_path, variable, make_optimizer("SGD"))
    dump.load(tmp_path, variable, [])
    with pytest.raises(FileNotFoundError, match="plain_0-Adam-m"):
        dump.load(tmp_path, variable, make_optimizer())


KEYS = [0, 1, 2, 3]
# By case: the type of keys in the file, the keys, the error's `got`, and a part of its `wanted`.
WRONG_KEYS = {
    "static: twice": ("int64", [0, 1, 2, 2], "key 2 more than once", "each key once"),
    "static: too large": ("uint64", [0, 1, 2, 4], "key 4", "keys from 0 to 3"),
    "static: negative": ("int64", [0, 1, 2, -3], "key -3", "keys from 0 to 3"),
    "static: missing": ("int64", [0, 1, 3], "3 keys", "all 4 keys"),
    "dynamic: twice": ("int64", [5, 8, 9, 5], "key 5 more than once", "each key once"),
    "dynamic: too large": ("uint64", [5, 8, 9, 2**63], f"key {2**63}", "keys of type int64"),
    "int32: too large": ("int64", [5, 8, 9, 2**31], f"key {2**31}", "keys of type int32"),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_wrong_keys_are_named_and_change_nothing(tmp_path, case):
    key_type, keys, got, wanted = WRONG_KEYS[case]
    key_of_table = tf.int32 if case.startswith("int32") else tf.int64
    variable = static("t") if case.startswith("static") else dynamic("t", key_type=key_of_table)
    good = static("good")
    fill(variable, KEYS)
    before = rows_by_key(variable)
    write_files(tmp_path, good, KEYS, value(KEYS, 9))
    write_files(tmp_path, variable, keys, value(range(len(keys)), 9), key_type)
    with pytest.raises(files.DumpFileError) as caught:
        dump.load(tmp_path, [good, variable])
    assert caught.value.path == str(tmp_path / f"{table_of(variable)}-key")
    assert caught.value.got == got and wanted in caught.value.wanted
    assert rows_by_key(variable) == before and not good.numpy().any()


def test_values_that_do_not_fit_the_variable_are_named(tmp_path):
    whole, floats = static("whole_numbers", dtype=tf.int32), static("floats")
    write_files(tmp_path, whole, KEYS, value(KEYS, 1))
    with pytest.raises(files.DumpFileError, match="weight: got values of type float32, wanted .* converts to int32"):
        dump.load(tmp_path, whole)
    write_files(tmp_path, floats, KEYS, np.ones([4, 3]))
    with pytest.raises(files.DumpFileError, match="weight: got rows of dimension 3, wanted dimension 2"):
        dump.load(tmp_path, floats)
    with pytest.raises(FileNotFoundError, match="absent_0-key"):
        dump.load(tmp_path, static("absent"))
    with pytest.raises(FileNotFoundError, match="found no such folder"):
        dump.load(tmp_path / "nowhere", floats)


def test_arguments_are_checked(tmp_path):
    variable = static("v")
    for call in (dump.dump, dump.load):
        for wrong in (None, [variable, None], tf.Variable([1.0]), "v"):
            with pytest.raises(TypeError, match=r"wanted sok.Variable or sok.DynamicVariable"):
                call(tmp_path, wrong)
        with pytest.raises(ValueError, match="'a/b:0' and 'a_b:0', which would have the same files"):
            call(tmp_path, [static("a/b"), static("a_b")])
        with pytest.raises(ValueError, match="got a list of 2 optimizers"):
            call(tmp_path, variable, [make_optimizer(), make_optimizer()])
        with tf.Graph().as_default(), pytest.raises(RuntimeError, match="graph mode, wanted eager execution"):
            call(tmp_path, variable)
    with pytest.raises(TypeError, match="bfloat16"):
        dump.dump(tmp_path, static("b", dtype=tf.bfloat16))
    with pytest.raises(ValueError, match="'empty.*got a table without keys"):
        dump.dump(tmp_path, dynamic("empty"))
    assert not os.listdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="file"):
        dump.dump(tmp_path / "file", variable)


def test_slots_of_a_part_of_the_variables_are_completed(tmp_path):
    optimizer, trained, untrained = make_optimizer(), static("trained"), static("untrained")
    fill(trained, KEYS, optimizer)
    dump.dump(tmp_path, [trained, untrained], optimizer.optimizer)
    assert without_dump((tmp_path / "trained_0-Adam-m").read_bytes()) == raw_file(
        2, "float32", value(KEYS, 3), "trained_0", "m"
    )
    zeros = raw_file(2, "float32", np.zeros([4, 2]), "untrained_0", "v")
    assert without_dump((tmp_path / "untrained_0-Adam-v").read_bytes()) == zeros


@pytest.mark.parametrize("kind", BUILT_ONCE)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_load_builds_an_optimizer_for_all_static_variables(tmp_path, kind, is_wrapped):
    tables = [static("a"), static("b", mode="localized:0"), static("c")]
    tables += [dynamic("d")] if is_wrapped else []
    for table in tables:
        write_files(tmp_path, table, KEYS, value(KEYS, 5), m=value(KEYS, 6), v=value(KEYS, 7))
    optimizer = optimizers.wrap(BUILT_ONCE[kind]()) if is_wrapped else BUILT_ONCE[kind]()
    dump.load(tmp_path, tables, optimizer)
    for table in tables:
        assert rows_by_key(table) == {key: [key, 5] for key in KEYS}
        assert slot_by_key(optimizer, table, "m") == {key: [key, 6] for key in KEYS}
        assert slot_by_key(optimizer, table, "v") == {key: [key, 7] for key in KEYS}
    dump.dump(tmp_path / "again", tables, optimizer)
    assert without_dump((tmp_path / "again" / "c_0-Adam-v").read_bytes()) == raw_file(
        2, "float32", value(KEYS, 7), "c_0", "v"
    )


@pytest.mark.parametrize("kind", BUILT_ONCE)
def test_optimizer_that_was_built_without_a_variable_is_an_error(tmp_path, kind):
    optimizer, trained, other = BUILT_ONCE[kind](), static("trained"), static("other")
    for table in (trained, other):
        write_files(tmp_path, table, KEYS, value(KEYS, 5), m=value(KEYS, 6), v=value(KEYS, 7))
    optimizer.build([trained])
    message = "^optimizer: got Adam that was built without 'other:0', wanted one that is not built yet, or was built"
    with pytest.raises(ValueError, match=message):
        dump.load(tmp_path, [trained, other], optimizer)
    assert not trained.numpy().any() and not other.numpy().any()
    with pytest.raises(ValueError, match=message):
        dump.dump(tmp_path / "none", [trained, other], optimizer)
    assert not os.listdir(tmp_path / "none")


def test_sok_sgd_needs_no_slots(tmp_path):
    tables = [static("s"), dynamic("d")]
    for table in tables:
        fill(table, KEYS)
    dump.dump(tmp_path, tables, optimizers.SGD(0.1))
    assert len(os.listdir(tmp_path)) == 4
    dump.load(tmp_path, tables, optimizers.SGD(0.1))


def test_failed_dump_leaves_the_last_one(tmp_path, monkeypatch):
    first, second = static("first"), static("second")
    dump.dump(tmp_path, [first, second])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    first.assign(np.ones([4, 2]))
    write = files.StagedFiles.append

    def fail(self, path, values):
        if "second" in path:
            raise OSError(28, "No space left on device")
        write(self, path, values)

    monkeypatch.setattr(files.StagedFiles, "append", fail)
    with pytest.raises(OSError, match="No space"):
        dump.dump(tmp_path, [first, second])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def two_tables(number):
    tables = [static("a"), static("b")]
    for table in tables:
        table.assign(np.full([4, 2], number))
    return tables


def loaded(folder):
    tables = two_tables(0)
    dump.load(folder, tables)
    return {float(number) for table in tables for number in np.unique(table.numpy())}


# Promise (sok.md): files of dumps have SOK's bytes, load on any number of ranks, are complete or absent, and name their
# damage.
@pytest.mark.parametrize("ends_at", ["rename", "exchange"])
def test_a_dump_that_ends_in_the_middle_of_its_renames_leaves_the_last_one(tmp_path, monkeypatch, ends_at):
    def fail(*args):
        raise OSError(5, "Input/output error")

    folder = tmp_path / "dump"
    dump.dump(folder, two_tables(1))
    (folder / "notes.txt").write_text("of the user")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(whole_files, "_exchange", fail if ends_at == "exchange" else lambda *paths: False)
        if ends_at == "rename":  # of a file system without the exchange
            patch.setattr(os, "rename", fail)
        dump.dump(folder, two_tables(2))
    assert loaded(folder) == {1.0} and os.listdir(tmp_path) == ["dump"]
    dump.dump(folder, two_tables(3))
    assert loaded(folder) == {3.0} and (folder / "notes.txt").read_text() == "of the user"


# Promise (sok.md): files of two dumps are refused; tables that were dumped one by one load together.
def test_files_of_two_dumps_are_refused_where_a_folder_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_files, "is_replaceable", lambda path: False)
    replace, renamed = os.replace, []

    def fail_at_the_third(source, target):
        renamed.append(target)
        if len(renamed) == 3:
            raise OSError(5, "Input/output error")
        replace(source, target)

    dump.dump(tmp_path, two_tables(1))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(os, "replace", fail_at_the_third)
        dump.dump(tmp_path, two_tables(2))
    with pytest.raises(files.DumpFileError, match=r"got a file of another dump \(dump=\w+/4\), wanted one of the same"):
        loaded(tmp_path)
    other = static("c")
    dump.dump(tmp_path, other)  # a later dump that is complete does not hide it
    with pytest.raises(files.DumpFileError, match="got a file of another dump"):
        dump.load(tmp_path, [*two_tables(0), other])
    dump.dump(tmp_path, two_tables(3))
    assert loaded(tmp_path) == {3.0}


# Promise (sok.md): files of two dumps are refused; tables that were dumped one by one load together.
def test_a_file_of_another_dump_is_named_and_changes_nothing(tmp_path):
    dump.dump(tmp_path / "first", two_tables(1))
    dump.dump(tmp_path / "second", two_tables(2))
    shutil.copy(tmp_path / "first" / "b_0-weight", tmp_path / "second")
    with pytest.raises(files.DumpFileError, match="second/b_0-weight: got a file of another dump"):
        loaded(tmp_path / "second")
    write_files(tmp_path / "first", static("a"), KEYS, value(KEYS, 9))  # of the original, without a number
    (tmp_path / "second" / "a_0-key").write_bytes((tmp_path / "first" / "a_0-key").read_bytes())
    with pytest.raises(files.DumpFileError, match=r"a_0-weight: .*wanted one of the same dump as .*without a number"):
        dump.load(tmp_path / "second", static("a"))


# Promise (sok.md): files of two dumps are refused; tables that were dumped one by one load together.
def test_tables_that_were_dumped_one_by_one_load_together(tmp_path):
    first, second = two_tables(4)
    dump.dump(tmp_path, first)
    dump.dump(tmp_path, second)
    assert loaded(tmp_path) == {4.0}


# Promise (sok.md): files of two dumps are refused; tables that were dumped one by one load together.
def test_a_table_loads_with_one_of_a_later_dump_that_has_lost_other_files(tmp_path):
    first, others = two_tables(4), [static("c"), static("d")]
    for table in others:
        table.assign(np.full([4, 2], 5))
    dump.dump(tmp_path, first)
    dump.dump(tmp_path, others)
    for path in tmp_path.glob("d_0-*"):
        path.unlink()
    tables = [static("a"), static("c")]
    dump.load(tmp_path, tables)
    assert [float(table.numpy()[0, 0]) for table in tables] == [4, 5]


def test_table_in_many_parts_is_the_same_file(tmp_path, monkeypatch):
    variable, optimizer = static("parts", (100, 3), dtype=tf.float16), make_optimizer()
    variable.assign(np.arange(300).reshape(100, 3))
    slots.ensure(optimizer, [variable])
    dump.dump(tmp_path / "whole", variable, optimizer)
    monkeypatch.setattr(files, "CHUNK_BYTES", 200)
    dump.dump(tmp_path / "parts", variable, optimizer)
    for path in (tmp_path / "whole").iterdir():
        parts = pathlib.Path(tmp_path, "parts", path.name).read_bytes()
        assert without_dump(parts) == without_dump(path.read_bytes())
