"""`lockstep inspect` on files that no writer has made: it describes them, or says in one line what is wrong."""

# Promise of this file (command.md): `lockstep inspect`, `timeline` and `doctor` answer hostile files and variables with
# one line.

import json
import os
import random
import resource
import struct
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
import tensorflow.compat.v1 as tf
from pyarrow import orc, parquet
from tensorflow.core.protobuf import tensor_bundle_pb2

from lockstep._src.inspection import command
from lockstep._src.saving import bundle
from lockstep.testing.mutations import feed, json_mutation, mutation
from lockstep.testing.tools import run_tool

pytestmark = pytest.mark.newest_only

ESCAPES = "\x1b]0;title\x07\x1b[2J\u202e\nsize: 0"
SHOWN = r"\x1b]0;title\x07\x1b[2J\u202e\nsize: 0"


def _h5(path, name="tower", **members):
    with h5py.File(path, "w") as file:
        file.create_group("layers/dense/vars").attrs["name"] = name
        for member, values in (members or {"0": np.ones((4, 2), np.float32)}).items():
            file["layers/dense/vars"][member] = values


def _keras(path, weights, config=None, compression=zipfile.ZIP_STORED):
    config = config or {"class_name": "Functional", "config": {"name": "model", "layers": []}}
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("config.json", json.dumps(config) if isinstance(config, dict) else config)
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.9", "date_saved": "today"}))
        archive.write(weights, "model.weights.h5")


def _checkpoint(prefix):
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in {
            "global_step": np.int64(3),
            "w": np.ones((4, 2), np.float32),
            "names": np.array(b"x"),
        }.items():
            tf.get_variable(name, initializer=value)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(prefix), write_meta_graph=False, write_state=False)


def _export(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int64, [None], name="ids")
        table = tf.get_variable("table", [10, 2])
        session.run(tf.global_variables_initializer())
        tf.saved_model.simple_save(session, str(folder), {"ids": ids}, {"rows": tf.gather(table, ids)})


@pytest.fixture(name="files", scope="module")
def _files(tmp_path_factory):
    """Makes one valid file of each kind that is read as bytes; returns them by name."""
    folder = tmp_path_factory.mktemp("files")
    table = pa.table({"id": range(20), "tags": [["a"] * (i % 3) for i in range(20)]})
    parquet.write_table(table, folder / "a.parquet")
    orc.write_table(table, folder / "a.orc")
    _h5(folder / "a.weights.h5")
    _keras(folder / "a.keras", folder / "a.weights.h5")
    _keras(folder / "b.keras", folder / "a.weights.h5", compression=zipfile.ZIP_DEFLATED)
    _export(folder / "export")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return {**files, "saved_model.pb": (folder / "export" / "saved_model.pb").read_bytes()}


# Most of these start a process for each input.
_INPUTS = {"saved_model.pb": 300, "a.keras": 12, "b.keras": 12, "a.weights.h5": 12, "a.parquet": 12, "a.orc": 12}


@pytest.mark.parametrize("name", _INPUTS)
@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.long)])
def test_a_changed_file_is_described_or_refused_in_one_line(files, name, times, tmp_path, capsys):
    path = tmp_path / name

    def read(data):
        path.write_bytes(data)
        if error := run_tool(command.main, [str(path)], capsys):
            assert error.startswith("lockstep inspect: ") and str(path) in error

    feed(f"lockstep inspect {name}", read, [files[name]], (), _INPUTS[name] * times)


def _changed_index(entries, draw):
    """Returns an index whose checksums are right, and whose entries are not."""
    changed = dict(entries)
    for _ in range(draw.randint(1, 3)):
        key = draw.choice(sorted(changed))
        if draw.random() < 0.4:
            changed[key] = mutation([changed[key]], draw.randrange(1 << 30))
        elif draw.random() < 0.2:
            changed[draw.choice([b"\0", b"\0w\0\1", b"-keys", b"w-keys", b"w-values", b"\xff"])] = changed[key]
        else:
            message = tensor_bundle_pb2.BundleEntryProto.FromString(entries.get(key, entries[b"w"]))
            number = draw.choice([-1, 0, 1, 1 << 20, 1 << 31, 1 << 40, (1 << 62) + 1])
            what = draw.choice(["size", "offset", "dtype", "shard_id", "dim", "slices"])
            if what == "dim":
                message.shape.dim.add().size = number
            elif what == "slices":
                message.slices.add()
            else:
                setattr(message, what, number if abs(number) < 1 << 31 else 1 << 30)
            changed[key] = message.SerializeToString()
    return bundle._table(changed)


@pytest.mark.parametrize("inputs", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_an_index_of_right_checksums_and_wrong_entries_is_described_or_refused(tmp_path, capsys, inputs):
    _checkpoint(tmp_path / "a")
    entries = bundle._read_table(f"{tmp_path}/a.index")
    assert run_tool(command.main, [str(tmp_path / "a")], capsys) == ""
    errors = 0
    for number in range(inputs):
        (tmp_path / "a.index").write_bytes(_changed_index(entries, random.Random(number)))
        errors += bool(run_tool(command.main, [str(tmp_path / "a")], capsys))
    assert 0 < errors < inputs


@pytest.mark.parametrize("inputs", [100, pytest.param(5000, marks=pytest.mark.long)])
def test_a_changed_configuration_of_keras_is_described_or_refused(tmp_path, capsys, monkeypatch, inputs):
    _h5(tmp_path / "a.h5")
    read = {"layers": [{"at": "layers/dense", "name": "d", "weights": {"0": ["float32", [2, 2], 16]}}], "known": True}
    monkeypatch.setattr("lockstep._src.inspection.hdf5_files.layers", lambda *_: read)
    layer = {"class_name": "Dense", "config": {"name": "d"}}
    config = {
        "class_name": "Model",
        "config": {"name": "m", "layers": [layer]},
        "compile_config": {"optimizer": "adam"},
    }

    def check(data):
        _keras(tmp_path / "a.keras", tmp_path / "a.h5", config=data)
        run_tool(command.main, [str(tmp_path / "a.keras")], capsys)

    feed("a configuration", check, [json.dumps(config).encode()], (), inputs, json_mutation)


def _refusal(path, capsys):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    error = run_tool(command.main, [str(path)], capsys)
    # In KiB. Other tests of this process may have had larger children, and a child begins with its parent's pages.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, own) + (1 << 20)
    assert error.startswith(f"lockstep inspect: {path}")
    return error


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, capsys):
    _h5(tmp_path / "a.h5")
    path = tmp_path / "a.keras"
    _keras(path, tmp_path / "a.h5", b"\0" * ((64 << 20) + 1), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    assert "config.json has more than 67108864 bytes" in _refusal(path, capsys)
    _keras(path, tmp_path / "a.h5", compression=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\1\2")  # of the weights, the last member
    data[at + 24 : at + 28] = struct.pack("<I", 3 << 30)
    path.write_bytes(data)
    assert f"model.weights.h5 has {3 << 30} bytes, compressed, wanted at most {1 << 30}" in _refusal(path, capsys)


def test_a_damaged_stream_of_an_archive_is_refused(files, tmp_path, capsys):
    data = bytearray(files["b.keras"])
    at = data.index(b"config.json") + len("config.json")
    data[at : at + 4] = b"\xff" * 4
    (tmp_path / "a.keras").write_bytes(data)
    assert "is damaged, or is not a file of Keras 3" in _refusal(tmp_path / "a.keras", capsys)


def test_weights_that_claim_more_than_the_file_has_are_refused(tmp_path, capsys):
    path = tmp_path / "a.weights.h5"
    for name in ("0", "table_data"):
        _h5(path, table_index=np.zeros(9, np.uint8))
        with h5py.File(path, "a") as file:
            file["layers/dense/vars"].create_dataset(name, (64 << 30,), np.uint8)
        assert f"weight '{name}' of 'layers/dense' has {64 << 30} bytes, but the file has " in _refusal(path, capsys)


def test_groups_in_a_circle_and_links_to_other_files_are_not_followed(tmp_path, capsys):
    path = tmp_path / "a.weights.h5"
    _h5(path)
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(path, "a") as file:
        file["layers/other"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/")
        file["layers/soft"] = h5py.SoftLink("/layers")
    assert run_tool(command.main, [str(path)], capsys) == ""
    with h5py.File(path, "a") as file:
        file["layers/dense/again"] = file["layers"]
    assert "its groups do not form a tree" in _refusal(path, capsys)


def test_a_folder_whose_name_is_a_digit_of_another_script_is_no_export(tmp_path, capsys):
    (tmp_path / "²").mkdir()
    (tmp_path / "²" / "saved_model.pb").write_bytes(b"")
    assert "no checkpoint, no export" in _refusal(tmp_path, capsys)


def test_pipes_are_no_files(tmp_path, capsys):
    for name in ("a.keras", "b.parquet", "c.index"):
        os.mkfifo(tmp_path / name)
        assert "is not a regular file" in _refusal(tmp_path / name, capsys)
    assert "no checkpoint, no export" in _refusal(tmp_path, capsys)


def test_a_block_that_an_index_lists_twice_and_a_number_without_end_are_damage(tmp_path):
    _checkpoint(tmp_path / "a")
    path = tmp_path / "a.index"
    data = path.read_bytes()
    listed, _ = bundle._handle(data, bundle._handle(data, len(data) - 48)[1])
    ((key, where),) = bundle._entries(data, *listed, "a")
    out = bytearray(data[: listed[0]])
    footer = bundle._add_block(out, {}) + bundle._add_block(out, {key: where, key + b"x": where})
    path.write_bytes(bytes(out) + footer.ljust(40, b"\0") + data[-8:])
    with pytest.raises(ValueError, match="its keys are not in order"):
        bundle.read_index(str(tmp_path / "a"))
    path.write_bytes(b"\x80" * 100_000 + data[-8:])
    with pytest.raises(ValueError, match="a number has more than 64 bits"):
        bundle.read_index(str(tmp_path / "a"))


def test_names_with_escapes_are_shown_escaped(tmp_path, capsys):
    parquet.write_table(pa.table({ESCAPES: [1]}), tmp_path / "a.parquet")
    _h5(tmp_path / "a.weights.h5", ESCAPES)
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.Saver({ESCAPES: tf.get_variable("w", [2])})
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "ckpt"), write_meta_graph=False, write_state=False)
    (tmp_path / ESCAPES.replace("/", "")).write_bytes(b"")
    for name in ("a.parquet", "a.weights.h5", "ckpt"):
        assert command.main([str(tmp_path / name)]) == 0
        shown = capsys.readouterr().out
        assert SHOWN in shown and not any(ord(one) < 32 and one != "\n" for one in shown)
    assert SHOWN.replace(r"\n", " ") in run_tool(command.main, [str(tmp_path / ESCAPES)], capsys)
