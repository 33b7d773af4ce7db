"""Tests of the format against a reader and a writer of their own, of damaged files, and of files that appear whole."""

from __future__ import annotations

import os
import pathlib
import re
import struct

import numpy as np
import pytest

from lockstep._src.compat.sok import files
from lockstep._src.compat.sok.files import FileType, Header

pytestmark = pytest.mark.newest_only  # uses no TensorFlow

# The numbers of types, as documented by the original.
NUMBERS = {"int32": 0, "int64": 1, "uint32": 2, "uint64": 3, "float16": 4, "float32": 5, "float64": 6}


def raw_file(file_type, dtype, values, table="", slot=""):
    """Returns the bytes of a file, written independently of files.py."""
    header = f"{table:>256}".encode() + struct.pack(">I", file_type) + f"{slot:>32}".encode()
    header += struct.pack(">I", NUMBERS[dtype])
    return header + np.asarray(values).astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def without_dump(data):
    """Returns the bytes of a file with blanks in place of its dump, as the original writes them."""
    match = re.match(rb"dump=[0-9a-f]{16}/\d+(/[0-9a-f]{64})?", data)
    return data if match is None else b" " * match.end() + data[match.end() :]


def write_table(folder, keys, weights, **slots):
    """Writes the files of a table "t" of the optimizer "Adam", with int64 keys and float32 rows."""
    folder.mkdir(exist_ok=True)
    (folder / "t-key").write_bytes(raw_file(0, "int64", keys))
    (folder / "t-weight").write_bytes(raw_file(1, "float32", weights))
    for slot, values in slots.items():
        (folder / f"t-Adam-{slot}").write_bytes(raw_file(2, "float32", values, slot=slot))
    return str(folder)


def test_names_of_tables_have_no_punctuation():
    assert files.table_name("v:0") == "v_0"
    assert files.table_name("a/b-c.d[1]~é 2") == "a_b_c_d_1__é 2"
    assert files.slot_path("/d", "v_0", "Adam", "m") == "/d/v_0-Adam-m"


# Promise (sok.md): files of dumps have SOK's bytes, load on any number of ranks, are complete or absent, and name their
# damage.
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("file_type", FileType)
def test_headers_have_these_bytes(tmp_path, dtype, file_type):
    slot = "momentum" if file_type == FileType.SLOT else ""
    header = Header(file_type, np.dtype(dtype), "user_0", slot)
    assert header.encode() == raw_file(int(file_type), dtype, [], "user_0", slot)
    assert len(header.encode()) == files.HEADER_BYTES
    path = tmp_path / "file"
    path.write_bytes(header.encode())
    assert Header.read(str(path)) == header


def test_header_has_the_dump_before_the_name():
    encoded = Header(FileType.KEY, np.dtype("i8"), "t", dump=files.Dump("18a1f0c3b2d4e5f6", 12)).encode()
    assert encoded[:256] == b"dump=18a1f0c3b2d4e5f6/12" + b" " * 231 + b"t"
    long = Header(FileType.KEY, np.dtype("i8"), "n" * 256, dump=files.Dump("18a1f0c3b2d4e5f6", 12)).encode()
    assert long[:256] == b"dump=18a1f0c3b2d4e5f6/12" + b"n" * 232


def test_header_has_a_filter_of_the_tables_of_its_dump(tmp_path):
    dump = files.Dump("18a1f0c3b2d4e5f6", 12, files.filter_of(["t", "u"]))
    encoded = Header(FileType.KEY, np.dtype("i8"), "t", dump=dump).encode()
    assert re.fullmatch(rb"dump=18a1f0c3b2d4e5f6/12/[0-9a-f]{64} {166}t", encoded[:256])
    (tmp_path / "file").write_bytes(encoded)
    header = Header.read(str(tmp_path / "file"))
    assert header.dump == dump and header.table == "t" and str(dump) == "dump=18a1f0c3b2d4e5f6/12"
    assert dump.may_have("t") and dump.may_have("u")
    assert sum(dump.may_have(f"table {number}") for number in range(1000)) < 10
    assert files.Dump("18a1f0c3b2d4e5f6", 12).may_have("other")  # of an earlier version, which does not say


def test_header_counts_bytes_and_refuses_names_that_do_not_fit():
    encoded = Header(FileType.SLOT, np.dtype("f4"), "é" * 128, "m" * 32).encode()
    assert len(encoded) == files.HEADER_BYTES and encoded[:256] == ("é" * 128).encode()
    for table, slot in (("é" * 129, ""), ("", "m" * 33)):
        with pytest.raises(ValueError, match="wanted at most"):
            Header(FileType.SLOT, np.dtype("f4"), table, slot).encode()
    with pytest.raises(TypeError, match="bool, wanted one of int32, int64, uint32"):
        Header(FileType.WEIGHT, np.dtype(bool)).encode()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_values_survive_the_round_trip_in_parts(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 100)
    values = np.random.default_rng(3).integers(0, 1 << 15, 60).astype(dtype)
    path = str(tmp_path / "values")
    header = Header(FileType.WEIGHT, np.dtype(dtype), "t")
    with files.StagedFiles(str(tmp_path), ".draft") as staged:
        staged.create(path, header)
        for start, stop in files.chunks(60, np.dtype(dtype).itemsize):
            staged.append(path, values[start:stop].astype(np.dtype(dtype).newbyteorder(">")))
        staged.sync()
        staged.publish()
    assert pathlib.Path(path).read_bytes() == raw_file(1, dtype, values, "t")
    read = files.ValuesFile(path, FileType.WEIGHT)
    assert (read.dtype, read.count) == (np.dtype(dtype), 60)
    np.testing.assert_array_equal(read.read(7, 31), values[7:31])


def test_table_is_read_in_parts_of_limited_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 64)
    keys, weights = np.arange(50)[::-1], np.arange(150.0).reshape(50, 3)
    table = files.TableFiles(write_table(tmp_path, keys, weights, m=weights + 1), "t", 3, "Adam", ["m"])
    parts = list(table.key_chunks())
    assert max(map(len, parts)) == 8
    np.testing.assert_array_equal(np.concatenate(parts), keys)
    for file, wanted in ((table.weights, weights), (table.slots["m"], weights + 1)):
        parts = list(table.row_chunks(file))
        assert max(len(part) for part, _ in parts) == 5
        np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), keys)
        np.testing.assert_array_equal(np.concatenate([rows for _, rows in parts]), wanted)


def test_row_larger_than_a_part_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 4)
    table = files.TableFiles(write_table(tmp_path, [5, 6], [[1, 2, 3], [4, 5, 6]]), "t", 3)
    assert [rows.tolist() for _, rows in table.row_chunks(table.weights)] == [[[1, 2, 3]], [[4, 5, 6]]]


def test_table_without_keys_is_read_as_such(tmp_path):
    table = files.TableFiles(write_table(tmp_path, [], []), "t", 3)
    assert table.num_keys == 0 and not list(table.key_chunks()) and not list(table.row_chunks(table.weights))


def replaced(name, data):
    return lambda folder: (folder / name).write_bytes(data)


KEYS, WEIGHTS, SLOT = [4, 2, 7], np.ones([3, 2]), np.zeros([3, 2])
GOOD = raw_file(1, "float32", WEIGHTS)
DAMAGES = {
    "a short header": (replaced("t-key", b"\0" * 295), "t-key", "295 bytes", "a header of 296 bytes"),
    "an empty file": (replaced("t-weight", b""), "t-weight", "0 bytes", "a header of 296 bytes"),
    "weights as keys": (replaced("t-key", GOOD), "t-key", "a file of weights (type 1)", "a file of keys (type 0)"),
    "keys as a slot": (
        replaced("t-Adam-m", raw_file(0, "int64", KEYS)),
        "t-Adam-m",
        "a file of keys (type 0)",
        "a file of a slot (type 2)",
    ),
    "another slot": (replaced("t-Adam-m", raw_file(2, "float32", SLOT, slot="v")), "t-Adam-m", "slot 'v'", "slot 'm'"),
    "an unknown file type": (
        replaced("t-weight", GOOD[:256] + b"\0\0\0\3" + GOOD[260:]),
        "t-weight",
        "file type 3",
        "0 (keys), 1 (weights) or 2 (a slot)",
    ),
    "an unknown type of values": (
        replaced("t-weight", GOOD[:292] + b"\0\0\0\7" + GOOD[296:]),
        "t-weight",
        "values of type number 7",
        "a number below 7",
    ),
    "keys that are not integers": (
        replaced("t-key", raw_file(0, "float32", KEYS)),
        "t-key",
        "keys of type float32",
        "keys of a type of integers",
    ),
    "half a value": (replaced("t-weight", GOOD[:-1]), "t-weight", "23 bytes of values", "a multiple of 4"),
    "fewer rows than keys": (replaced("t-weight", GOOD[:-8]), "t-weight", "4 values", "a multiple of 3"),
    "weights without keys": (replaced("t-key", raw_file(0, "int64", [])), "t-weight", "6 values", "a multiple of 0"),
    "another dimension": (
        replaced("t-weight", raw_file(1, "float32", np.ones([3, 4]))),
        "t-weight",
        "rows of dimension 4",
        "dimension 2",
    ),
    "no weights": (replaced("t-weight", GOOD[:296]), "t-weight", "rows of dimension 0", "dimension 2"),
    "a longer slot": (
        replaced("t-Adam-v", raw_file(2, "float32", np.ones([6, 2]), slot="v")),
        "t-Adam-v",
        "rows of dimension 4",
        "dimension 2",
    ),
}


# Promise (sok.md): files of dumps have SOK's bytes, load on any number of ranks, are complete or absent, and name their
# damage.
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_named(tmp_path, damage):
    folder = write_table(tmp_path, KEYS, WEIGHTS, m=SLOT, v=SLOT)
    files.TableFiles(folder, "t", 2, "Adam", ["m", "v"])
    change, name, got, wanted = DAMAGES[damage]
    change(tmp_path)
    with pytest.raises(files.DumpFileError) as caught:
        files.TableFiles(folder, "t", 2, "Adam", ["m", "v"])
    assert os.path.basename(caught.value.path) == name
    assert caught.value.got == got and caught.value.wanted.startswith(wanted)
    assert str(caught.value) == f"{caught.value.path}: got {got}, wanted {caught.value.wanted}"


@pytest.mark.parametrize("name", ["t-key", "t-weight", "t-Adam-v"])
def test_missing_file_is_named(tmp_path, name):
    folder = write_table(tmp_path, KEYS, WEIGHTS, m=SLOT, v=SLOT)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        files.TableFiles(folder, "t", 2, "Adam", ["m", "v"])


def test_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path):
    table = files.TableFiles(write_table(tmp_path, KEYS, WEIGHTS), "t", 2)
    (tmp_path / "t-weight").write_bytes(GOOD[:-8])
    with pytest.raises(files.DumpFileError, match="got 4 values, wanted the 6 that it had before"):
        table.weights.read(0, 6)


def test_headers_with_names_that_are_no_text_are_accepted(tmp_path):
    (tmp_path / "file").write_bytes(b"\xff" * 256 + GOOD[256:])
    assert files.ValuesFile(str(tmp_path / "file"), FileType.WEIGHT).count == 6


# Promise (sok.md): files of dumps have SOK's bytes, load on any number of ranks, are complete or absent, and name their
# damage.
def test_files_appear_together_or_not_at_all(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    header = Header(FileType.KEY, np.dtype("i8"))

    def write(fails):
        with files.StagedFiles(str(tmp_path), ".draft") as staged:
            staged.create(str(old), header)
            staged.create(str(new), header)
            staged.append(str(new), np.arange(3))
            staged.sync()
            assert old.read_bytes() == b"old" and not new.exists()
            if fails:
                raise OSError("no space")
            staged.publish()

    with pytest.raises(OSError, match="no space"):
        write(fails=True)
    assert old.read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["old"]
    write(fails=False)
    assert old.read_bytes() == header.encode() and len(new.read_bytes()) == 296 + 24
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_a_draft_that_another_rank_has_published_is_no_error_if_a_file_server_still_shows_it(tmp_path, monkeypatch):
    folder, is_folder, listed = tmp_path / "dump", os.path.isdir, os.listdir
    folder.mkdir()
    header = Header(FileType.KEY, np.dtype("i8"))
    with files.StagedFiles(str(folder), ".draft") as first, files.StagedFiles(str(folder), ".draft") as second:
        first.create(str(folder / "a"), header)
        second.create(str(folder / "b"), header)
        first.sync()
        second.sync()
        first.publish()
        monkeypatch.setattr(os.path, "isdir", lambda path: str(path) == second._draft or is_folder(path))
        with pytest.raises(FileNotFoundError):
            second.publish()
        second.publish(after_another=True)
    assert sorted(listed(folder)) == ["a", "b"] and listed(tmp_path) == ["dump"]


def test_files_are_renamed_one_by_one_in_a_read_only_parent_and_read_only_files_are_refused(tmp_path, monkeypatch):
    folder, access = tmp_path / "dump", os.access
    folder.mkdir()
    (folder / "b").write_bytes(b"old")
    refused = {str(tmp_path), str(folder / "b")}  # root may write to all
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in refused and access(path, mode))
    header, number = Header(FileType.KEY, np.dtype("i8")), folder.stat().st_ino
    with files.StagedFiles(str(folder), ".draft") as staged:
        staged.create(str(folder / "a"), header)
        with pytest.raises(PermissionError, match="dump/b"):
            staged.create(str(folder / "b"), header)
        staged.sync()
        staged.publish()
    assert folder.stat().st_ino == number and sorted(os.listdir(folder)) == ["a", "b"]
    assert (folder / "b").read_bytes() == b"old" and (folder / "a").read_bytes() == header.encode()
