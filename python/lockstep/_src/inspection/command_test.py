"""Checkpoints of one worker, exports, files of Keras and columnar files, described by `lockstep inspect`."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pyarrow as pa
import pytest
import tensorflow.compat.v1 as tf
from pyarrow import orc, parquet

from lockstep._src.inspection import columnar_files, command
from lockstep._src.inspection.description import lines_of
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.saving.saved_models import export
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables import dynamic

KEYS, DIM, ROWS = [3, 5, 7, 2**40], 4, 50


def _rows(ids):
    option = dynamic.EmbeddingVariableOption(filter_option=dynamic.CounterFilter(2))
    table = dynamic.get_embedding_variable("user", DIM, ev_option=option)
    with embedding_scope():
        fixed = tf.get_variable("item", [ROWS, DIM])
    return tf.nn.embedding_lookup(table, ids) + tf.nn.embedding_lookup(fixed, ids % ROWS)


def _signature():
    ids = tf.placeholder(tf.int64, [None], name="ids")
    return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": _rows(ids)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Creates checkpoints: four keys that are admitted, one that is counted; then an increment with one key."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with tf.Graph().as_default(), scope():
        ids = tf.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(_rows(ids))
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        saver = IncrementalSaver(full_every=9)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for fed in (KEYS, [*KEYS, 11]):
                session.run(train, {ids: fed})
            saver.save(session, str(folder / "model.ckpt"), global_step=session.run(step))
            session.run(train, {ids: [5]})
            saver.save(session, str(folder / "model.ckpt"), global_step=session.run(step))
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def _table(described, name):
    (found,) = [one for one in described["dynamic tables"] if one["name"] == name]
    return found


@pytest.mark.parametrize("spelling", ["model.ckpt-2", "model.ckpt-2.index", ""])
def test_a_checkpoint_has_tables_rows_widths_slots_and_sizes(folder, spelling):
    described = command.describe(os.path.join(folder, spelling) if spelling else str(folder))
    stock = tf.train.load_checkpoint(str(folder / "model.ckpt-2"))
    user = _table(described, "user")
    assert (described["step"], described["written_by"], described["workers"]) == (2, "Lockstep", 1)
    assert (user["rows"], user["width"], user["keys"], user["counted"]) == (len(KEYS), DIM, "int64", 1)
    assert user["rows_of_workers"] == [len(KEYS)] and user["changes_only"] is None
    tensors = {name: stock.get_tensor(name) for name in stock.get_variable_to_shape_map()}
    assert user["slots"] == sorted(name[len("user/") :] for name in tensors if name.startswith("user/"))
    others = {one["name"]: one for one in described["tensors"]}
    item = others["item"]
    assert (item["type"], item["shape"], len(item["slots"])) == ("float32", f"{ROWS}x{DIM}", 1)
    assert item["bytes"] == 2 * ROWS * DIM * 4
    numbers = sum(value.nbytes for value in tensors.values() if value.dtype != object)
    assert numbers <= described["bytes"] < numbers + 200  # the names of slots are strings


def test_a_folder_shows_its_increments(folder):
    described = command.describe(str(folder))
    (increment,) = described["increments"]
    assert increment["checkpoint"].endswith("model.ckpt-2-to-3")
    user = _table(command.describe(increment["checkpoint"]), "user")
    assert (user["rows"], user["changes_only"]) == (1, True)


def test_an_export_has_signatures_and_tables(folder, tmp_path):
    with scope():
        path = export(str(tmp_path), str(folder / "model.ckpt-2"), _signature)
    described = command.describe(os.fsdecode(path))
    (signature,) = described["signatures"]
    assert signature["inputs"] == ["ids: int64 [?]"] and signature["outputs"] == [f"rows: float32 [?, {DIM}]"]
    assert _table(described, "user")["rows"] == len(KEYS)
    assert described["written_by"] == f"TensorFlow {tf.__version__}"
    assert described["bytes"] > described["graph_bytes"] > 0


# Two tables of this library, and an ordinary layer.
_KERAS = """
import keras, numpy as np, tensorflow as tf
import lockstep, lockstep.keras
ids = np.arange(64)
with lockstep.scope():
    user, item = (keras.Input((), name=name, dtype="int64") for name in ("user", "item"))
    with lockstep.embedding_scope():
        row = keras.layers.Embedding(100, 4, name="users")(user)
    rows = [row, lockstep.keras.DynamicEmbedding(8, name="items")(item)]
    out = keras.layers.Dense(1, name="tower")(keras.ops.concatenate(rows, -1))
    model = keras.Model({"user": user, "item": item}, out)
    model.compile("adam", "mse")
    model.fit({"user": ids, "item": ids * 7}, ids, batch_size=8, verbose=0)
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    lockstep.keras.export(model, "exported", verbose=False)
"""
has_keras3 = pytest.mark.skipif(
    not getattr(tf.keras, "__version__", "2").startswith("3"), reason="TensorFlow before 2.16 has no Keras 3"
)


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    subprocess.run([sys.executable, "-c", _KERAS], cwd=folder, timeout=240, check=True, capture_output=True)
    return folder


@has_keras3
@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_file_of_keras_has_layers_weights_and_tables(keras_files, name):
    import keras

    described = command.describe(str(keras_files / name))
    is_model = name.endswith(".keras")
    layers = {one["name"]: one for one in described["layers"]}
    classes = {"users": "Embedding", "items": "DynamicEmbedding", "tower": "Dense", "optimizer": "Adam"}
    assert {n: one["class"] for n, one in layers.items()} == {n: c if is_model else "" for n, c in classes.items()}
    weights = {one["name"]: (one["shape"], one["bytes"]) for one in described["weights"]}
    assert weights["tower/0"] == ("12x1", 48) and weights["tower/1"] == ("1", 4)
    (table,) = described["embedding tables"]
    assert table == {"name": "users", "rows": 100, "width": 4, "type": "float32", "bytes": 1600}
    items = _table(described, "items")
    assert (items["rows"], items["width"], items["keys"], len(items["slots"])) == (64, 8, "int64", 2)
    assert (layers["tower"]["parameters"], layers["users"]["parameters"]) == (13, 400)
    # The rows of a dynamic table are parameters as well.
    assert (layers["items"]["rows"], layers["items"]["parameters"]) == (64, 64 * 8)
    assert described["parameters"] == 13 + 400 + 64 * 8 and layers["tower"]["rows"] is None
    assert described["bytes"] == os.path.getsize(keras_files / name)
    if is_model:
        assert (described["written_by"], described["optimizer"]) == (f"Keras {keras.__version__}", "Adam")
        assert described["class"].startswith("Functional ")
    assert "weights (" in "\n".join(lines_of(described))


@has_keras3
@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
@pytest.mark.parametrize("how", ["cut", "foreign", "remove"])
def test_a_file_of_keras_that_is_damaged_foreign_or_missing_is_named(keras_files, tmp_path, capsys, name, how):
    path = tmp_path / shutil.copy(keras_files / name, tmp_path)
    _damage(path, how)
    assert command.main([str(path)]) == 1
    assert f"lockstep inspect: {path}" in capsys.readouterr().err


def test_the_last_export_in_a_folder_of_exports_is_described(folder, tmp_path):
    path = export(tmp_path / "exports", tf.train.latest_checkpoint(str(folder)), _signature)
    shutil.copytree(path, tmp_path / "exports" / "99")
    (tmp_path / "exports" / "temp-1").mkdir()
    found = command.describe(str(tmp_path / "exports"))
    assert found["export"] == os.fsdecode(path)


@has_keras3
def test_an_export_of_keras_names_its_tables_and_lists_each_weight_once(keras_files):
    described = command.describe(str(keras_files / "exported"))
    items = _table(described, "items")
    assert (items["rows"], items["width"], items["keys"]) == (64, 8, "int64")
    (users,) = described["embedding tables"]
    assert (users["name"], users["rows"], users["width"]) == ("users", 100, 4)
    rest = {one["name"]: (one["shape"], one["copies"]) for one in described["tensors"]}
    assert rest == {"tower/kernel": ("12x1", 2), "tower/bias": ("1", 2)}
    sizes = [one["bytes"] for part in ("dynamic tables", "embedding tables", "tensors") for one in described[part]]
    stored = sum(os.path.getsize(path) for path in (keras_files / "exported" / "variables").glob("*.data-*"))
    # The object graph is the rest.
    reader = tf.train.load_checkpoint(str(keras_files / "exported" / "variables" / "variables"))
    assert 0 <= stored - sum(sizes) - len(reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")) < 20


def test_a_value_stands_apart_from_a_name_of_any_length():
    assert lines_of({"step": 2, "positions in the data": 3}) == ["step:                  2", "positions in the data: 3"]
    assert lines_of({"step": 2}) == ["step:           2"]


def _damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "flip":
        data[len(data) // 3] ^= 64
    elif how == "foreign":
        data = bytearray(
            b"something else altogether, and long enough to be a footer of a table in the format of LevelDB"
        )
    path.unlink()
    if how != "remove":
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("model.ckpt-2.index", "cut"),
        ("model.ckpt-2.index", "flip"),
        ("model.ckpt-2.index", "foreign"),
        ("model.ckpt-2.data-*", "cut"),
        ("model.ckpt-2.data-*", "remove"),
        (".incremental_checkpoint/chain.json", "flip"),
        ("checkpoint", "cut"),
    ],
)
def test_damage_is_an_error_that_names_the_file(copy, capsys, name, how):
    path = max(copy.glob(name), key=lambda path: path.stat().st_size)
    _damage(path, how)
    # The state file names the folder in which it was written.
    assert command.main([str(copy / "model.ckpt-2" if "ckpt" in name else copy)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("lockstep inspect: ") and str(path).removesuffix(".index") in said


TABLE = pa.table({"id": pa.array(range(10), pa.int64()), "tags": [["a"] * (i % 3) for i in range(10)]})


@pytest.fixture
def data(tmp_path):
    parquet.write_table(TABLE, tmp_path / "a.parquet", row_group_size=4, compression="snappy")
    orc.write_table(TABLE, tmp_path / "b.orc")
    return tmp_path


def test_columnar_files_have_schema_rows_row_groups_and_sizes(data):
    described = command.describe(str(data), checksums=True)
    assert described["rows"] == 20 and [one["format"] for one in described["files"]] == ["Parquet", "ORC"]
    assert [one["rows"] for one in described["row groups"]] == [4, 4, 2]
    assert [(one["name"], one["type"]) for one in described["columns"]] == [
        ("id", "int64"),
        ("tags", str(parquet.read_schema(data / "a.parquet").field("tags").type)),
    ]
    assert described["columns"][0]["compression"] == ["SNAPPY"]
    for one in described["files"]:
        assert one["bytes"] == os.path.getsize(one["file"])
        wanted = subprocess.check_output(["sha256sum", one["file"]], text=True).split()[0]
        assert one["sha256"] == f"sha256:{wanted}"
    (alone,) = command.describe(str(data / "b.orc"))["files"]
    assert (alone["rows"], alone["groups"], alone["sha256"]) == (10, 1, None)


def test_another_schema_in_a_folder_is_shown(data):
    parquet.write_table(pa.table({"id": [1.5]}), data / "c.parquet")
    shown = [one["other_schema"] for one in command.describe(str(data))["files"]]
    assert shown == [None, None, "differs from the first file's"]


@pytest.mark.parametrize("name", ["a.parquet", "b.orc"])
@pytest.mark.parametrize("how", ["cut", "foreign", "remove"])
def test_a_columnar_file_that_is_damaged_foreign_or_missing_is_named(data, capsys, name, how):
    _damage(data / name, how)
    assert command.main([str(data / name)]) == 1
    assert str(data / name) in capsys.readouterr().err


def test_a_footer_that_ends_pyarrows_process_is_an_error_that_names_the_file(data, monkeypatch, capsys):
    (data / "sitecustomize.py").write_text("import pyarrow.parquet as p, os\np.ParquetFile = lambda path: os.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(data))
    assert command.main([str(data)]) == 1
    assert f"{data}/a.parquet is damaged: pyarrow cannot read its footer" in capsys.readouterr().err


def _read_with(folder, monkeypatch, lines):
    """Makes the processes that read files do some lines before they open a Parquet file."""
    lines = "".join(f"    {line}\n" for line in lines)
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time\nimport pyarrow.parquet as p\nopened = p.ParquetFile\n"
        f"def open_(path):\n{lines}    return opened(path)\np.ParquetFile = open_\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(columnar_files, "_SECONDS", 2)


# Promise (command.md): `lockstep inspect` limits the time of each file, and does not call a reached limit damage.
def test_the_limit_of_time_is_one_of_each_file(data, monkeypatch):
    for name in "cdef":
        shutil.copy(data / "a.parquet", data / f"{name}.parquet")
    burn = ["end = time.process_time() + 0.8", "while time.process_time() < end: pass"]
    _read_with(data, monkeypatch, burn)
    assert command.describe(str(data))["rows"] == 60


# Promise (command.md): `lockstep inspect` limits the time of each file, and does not call a reached limit damage.
@pytest.mark.parametrize(
    ("lines", "limit"),
    [
        (["while True: pass"], "it exceeds the limit of 2 s of CPU time"),
        (["bytearray(5 << 30)"], "it exceeds the limit of 4 GiB of memory"),
        (["raise OSError('ORC: std::bad_alloc')"], "it exceeds the limit of 4 GiB of memory"),
        (['os.write(2, b"what(): std::bad_alloc")', "os.abort()"], "it exceeds the limit of 4 GiB of memory"),
        (["os.kill(os.getpid(), 9)"], "its process was killed; the machine may be"),
    ],
)
def test_a_file_that_reaches_a_limit_is_not_called_damaged(data, monkeypatch, capsys, lines, limit):
    _read_with(data, monkeypatch, lines)
    assert command.main([str(data)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"lockstep inspect: {data}/a.parquet: ") and limit in said and "damaged" not in said


def test_other_files_and_folders_are_refused(tmp_path, capsys):
    (tmp_path / "model.keras").write_bytes(b"PK\3\4...")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n...")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "")
    for path, says in (
        (tmp_path / "model.keras", "model.keras is damaged, or is not a file of Keras 3"),
        (tmp_path / "other.zip", "other.zip is not a file of Keras 3: There is no item named 'config.json'"),
        (tmp_path / "picture.png", "first bytes b'\\x89PNG\\r\\n\\x1a\\n'"),
        (tmp_path, "no checkpoint, no export"),
    ):
        assert command.main([str(path)]) == 1
        assert says in capsys.readouterr().err
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    assert command.main([str(tmp_path)]) == 1
    assert f"{tmp_path}/saved_model.pb is damaged" in capsys.readouterr().err


def test_the_command_prints_tables_or_json_and_none_of_tensorflows_lines(folder):
    words = [sys.executable, "-m", "lockstep", "inspect", str(folder / "model.ckpt-2")]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "written by: Lockstep" in lines and "dynamic tables (1)" in lines
    assert any(line.startswith(f"user {len(KEYS)} {DIM} int64 ") for line in lines)
    assert shown.stderr == ""


def test_json_has_the_description(folder, capsys):
    assert command.main(["--json", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(command.describe(str(folder))))
    assert command.main(["--quiet", str(folder)]) == 0
    assert capsys.readouterr().out == ""
