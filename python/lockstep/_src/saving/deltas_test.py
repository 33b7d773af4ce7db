"""Deltas on exports: stock TensorFlow has, after each of them, the values of a full export, bit for bit."""

# Promise of this file (deltas.md): a server under load has a full export's scores after each delta; damaged, missing
# and late deltas are refused.

import glob
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import lockstep
from lockstep import _assembly  # noqa: F401  # the savers of tables
from lockstep._src.engine import whole_files
from lockstep._src.saving import delta_files, deltas, string_numbers
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.saving.saved_models import export
from lockstep._src.saving.string_numbers import numbers_of
from lockstep._src.tables import dynamic

DIM, ROWS = 3, 40
# Keys and rows that the tests look at: seen ones, and others.
IDS = np.arange(-5, 70)


class Model:
    """A model with dynamic tables that lose keys, a table with few changed rows, dense weights and a scalar."""

    def __init__(self, ids):
        make, option = dynamic.get_embedding_variable, dynamic.EmbeddingVariableOption
        evicts = dynamic.GlobalStepEvict(2)
        user = make("user", DIM, ev_option=option(evict_option=evicts, filter_option=dynamic.CounterFilter(2)))
        words = make("scope/words", DIM, key_dtype=tf.string, ev_option=option(evict_option=evicts))
        half = make("half", DIM, value_dtype=tf.float16, initializer=tf.ones_initializer())
        table = tf.get_variable("table", [ROWS, DIM], use_resource=True)
        parts = tf.get_variable(
            "parts", [ROWS, DIM], use_resource=True, partitioner=tf.fixed_size_partitioner(3), dtype=tf.float64
        )
        weights = tf.get_variable("weights", [DIM, 2], use_resource=True)
        bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer(), use_resource=True)
        within = tf.clip_by_value(ids, 0, ROWS - 1)
        self.rows = {
            "user": tf.nn.embedding_lookup(user, ids),
            "words": tf.nn.embedding_lookup(words, tf.as_string(ids)),
            "half": tf.nn.embedding_lookup(half, ids),
            "table": tf.nn.embedding_lookup(table, within),
            "parts": tf.nn.embedding_lookup(parts, within, partition_strategy="div"),
        }
        self.sum = tf.add_n([tf.cast(rows, tf.float32) for rows in self.rows.values()])
        reference = tf.get_variable("reference", [2], use_resource=False)  # as in programs of TensorFlow 1
        narrow = tf.get_variable("narrow", [2], tf.float16, use_resource=True)
        flags = tf.get_variable("flags", initializer=tf.constant([True, False]), use_resource=True, trainable=False)
        self.flip = flags.assign(~flags.read_value())
        self.score = tf.where(flags, tf.ones([2]), tf.zeros([2])) + reference + tf.cast(narrow, tf.float32)
        self.score += tf.matmul(self.sum, weights) + bias


class Training:
    """A graph and a session that train the model and save a chain of increments in a folder."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ids = tf.placeholder(tf.int64, [None])
            model = Model(self.ids)
            self.step = tf.train.get_or_create_global_step()
            loss = tf.reduce_sum(tf.square(model.score - 1.0)) / 100.0
            update = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=self.step)
            with tf.control_dependencies([update]):
                self.train = tf.group(model.flip)
            self.full = tf.train.Saver()
            self.saver = IncrementalSaver(self.full)
            self.session = tf.Session()
            self.session.run(tf.global_variables_initializer())
            self.saver.track(self.session)

    def run(self, seed, steps=1):
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            self.session.run(self.train, {self.ids: rng.integers(0, 60, 12)})

    def save(self):
        with self.graph.as_default():
            return self.saver.save(self.session, f"{self.folder}/model.ckpt", self.session.run(self.step))


def build():
    ids = tf.placeholder(tf.int64, [None], name="ids")
    model = Model(ids)
    return tf.saved_model.predict_signature_def({"ids": ids}, {"score": model.score, **model.rows})


class Served:
    """An export in a session of stock TensorFlow."""

    def __init__(self, directory):
        with tf.Graph().as_default():
            self._session = tf.Session()
            self._signatures = tf.saved_model.load(self._session, ["serve"], directory).signature_def

    def call(self, name, **fed):
        signature = self._signatures[name]
        feeds = {signature.inputs[key].name: value for key, value in fed.items()}
        return self._session.run({key: info.name for key, info in signature.outputs.items()}, feeds)

    def outputs(self):
        return {key: value.tobytes() for key, value in self.call("serving_default", ids=IDS).items()}

    def apply(self, delta):
        return int(self.call("lockstep_apply_delta", prefix=f"{delta}/delta")["version"])

    def version(self):
        return int(self.call("lockstep_version")["version"])


def full_export(folder, count, scratch):
    """Returns the outputs of `full_export_of`."""
    return Served(full_export_of(folder, count, scratch)).outputs()


def full_export_of(folder, count, scratch):
    """Returns the folder of a full export of the values after the first `count` increments of a chain."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    names = json.loads(Path(f"{scratch}/.incremental_checkpoint/chain.json").read_text())
    chain = deltas.chain.Chain(names["base"], names["increments"][:count])
    chain.write(str(scratch))
    training = Training(scratch)
    with training.graph.as_default():
        training.saver.restore(training.session, f"{scratch}/{chain.base}")
        path = training.full.save(training.session, f"{scratch}/whole/model.ckpt")
    return export(f"{scratch}/exports", path, build)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the folder of a chain with five increments, and an updatable export of its full checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    training = Training(folder / "job")
    training.run(0, 5)
    base = training.save()
    for i in range(5):
        training.run(100 + i, 3)
        training.save()
    return folder / "job", export(f"{folder}/exports", base, build, updatable=True)


def increments(folder):
    chain = deltas.chain.Chain.read(str(folder))
    return chain.prefixes(str(folder))


def tensors_of(prefix):
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def delta_of(since, checkpoint=None, directory=None):
    made = lockstep.export_delta(since, checkpoint, directory)
    assert made is not None
    return made


def test_after_each_delta_a_server_has_the_values_of_a_full_export(trained, tmp_path):
    folder, exported = trained
    served, since = Served(exported), exported
    assert served.outputs() == full_export(folder, 0, tmp_path / "scratch")
    outputs = []
    for i, prefix in enumerate(increments(folder), 1):
        since = delta_of(since, prefix, tmp_path / "deltas")
        assert os.path.basename(since) == f"{os.path.basename(exported)}-{i:06d}"
        assert served.apply(since) == served.version() == delta_files.read_record(since).version
        outputs.append(served.outputs())
        assert outputs[-1] == full_export(folder, i, tmp_path / "scratch"), i
        removed = tensors_of(f"{since}/delta")
        assert len(removed["user-removed-keys"]) and len(removed["scope/words-removed-keys"])
    assert len({*(one["score"] for one in outputs)}) == 5
    assert lockstep.export_delta(since) is None


def test_one_delta_of_several_increments_has_the_same_effect(trained, tmp_path):
    folder, exported = trained
    served = Served(exported)
    first = delta_of(exported, increments(folder)[1], tmp_path)
    served.apply(first)
    assert served.outputs() == full_export(folder, 2, tmp_path / "scratch")
    served.apply(delta_of(first))
    assert served.outputs() == full_export(folder, 5, tmp_path / "scratch")
    # A row that did not change is not in a delta, though the increments have the whole table.
    batches = [np.random.default_rng(100 + i).integers(0, 60, [3, 12]).clip(0, ROWS - 1) for i in range(2)]
    delta = tensors_of(f"{first}/delta")
    assert set(delta["table-changed-ids"]) == set(np.concatenate(batches).ravel()) < set(range(ROWS))
    assert delta["parts-changed-ids"].tolist() == delta["table-changed-ids"].tolist()


def test_a_delta_is_in_the_records_of_its_folder(trained, tmp_path):
    folder, exported = trained
    delta = delta_of(exported, directory=tmp_path)
    record = json.loads(Path(delta, "delta.json").read_text())
    assert {name: os.path.getsize(f"{delta}/{name}") for name in record["files"]} == {
        name: file["bytes"] for name, file in record["files"].items()
    }
    assert (record["export"], record["sequence"]) == (os.path.basename(exported), 1)
    link = tensors_of(f"{delta}/delta")["lockstep-link"].tolist()
    assert link == [record["version"], record["previous"]] and link[1] == Served(exported).version()
    assert record["checkpoint"] == increments(folder)[-1]
    assert record["tables"]["scope/words"] == {"dim": DIM, "key_dtype": "string"}
    assert record["variables"]["parts"] == {"shape": [ROWS, DIM], "dtype": "float64"}
    assert sorted(os.listdir(delta)) == ["delta.data-00000-of-00001", "delta.index", "delta.json"]


def sentence_of(error):
    """Returns the operation's own sentence; a session puts the place in the graph before it."""
    return error.__context__.message.splitlines()[0].strip()


def test_a_delta_out_of_order_or_damaged_changes_nothing(trained, tmp_path):
    folder, exported = trained
    first, second = increments(folder)[:2]
    one = delta_of(exported, first, tmp_path)
    two = delta_of(one, second)
    served = Served(exported)
    before, version = served.outputs(), served.version()
    made = delta_files.read_record(two)
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        served.apply(two)
    assert sentence_of(refused.value) == (
        f"assertion failed: [delta {two}/delta has version {made.version} and builds on version {made.previous}, but "
        f"the model has version {version}; apply the deltas in their order]"
    )
    for file in glob.glob(f"{one}/delta.data*"):
        data = bytearray(Path(file).read_bytes())
        data[len(data) // 2] ^= 1
        shutil.copytree(one, tmp_path / "damaged")
        Path(file.replace(one, f"{tmp_path}/damaged")).write_bytes(data)
    with pytest.raises(tf.errors.DataLossError, match="hecksum"):
        served.apply(tmp_path / "damaged")
    with pytest.raises(tf.errors.OpError, match="missing/delta"):
        served.apply(tmp_path / "missing")
    assert (served.outputs(), served.version()) == (before, version)
    served.apply(one)
    with pytest.raises(tf.errors.InvalidArgumentError, match="builds on version"):
        served.apply(one)
    served.apply(two)
    assert served.outputs() == full_export(folder, 2, tmp_path / "scratch")


def written(path, tensors):
    deltas._save(str(path), {name: np.asarray(value) for name, value in tensors.items()})
    return str(path)


def test_a_delta_that_does_not_fit_the_model_changes_nothing(trained, tmp_path):
    folder, exported = trained
    delta = delta_of(exported, increments(folder)[0], tmp_path / "deltas")
    tensors = tensors_of(f"{delta}/delta")
    served = Served(exported)
    before = served.outputs()
    for number, wrong in enumerate(
        [
            {"table-changed-ids": tensors["table-changed-ids"] + ROWS},
            {"table-changed-ids": tensors["table-changed-ids"] - ROWS},
            {"parts-changed-ids": tensors["parts-changed-ids"][1:]},
            {"user-changed-values": tensors["user-changed-values"][1:]},
            {"weights-changed-values": np.zeros([3, 3], np.float32)},
            {"bias": np.zeros([2], np.float32)},
        ]
    ):
        (tmp_path / str(number)).mkdir()
        written(tmp_path / str(number) / "delta", {**tensors, **wrong})
        with pytest.raises(tf.errors.InvalidArgumentError) as refused:
            served.apply(tmp_path / str(number))
        (name,) = (key.split("-")[0] for key in wrong)
        assert number > 3 or re.match(
            f"assertion failed: .delta {tmp_path}/{number}/delta has .* {name}\\b", sentence_of(refused.value)
        )
        assert served.outputs() == before, wrong.keys()


def test_eager_programs_of_stock_tensorflow_apply_deltas(trained, tmp_path):
    folder, exported = trained
    delta = delta_of(exported, directory=tmp_path)
    program = """
import sys
import numpy as np
import tensorflow as tf
exported, delta, full = sys.argv[1:]
served, other, full = map(tf.saved_model.load, (exported, exported, full))
ids = tf.range(-5, 70, dtype=tf.int64)
before = served.signatures["serving_default"](ids=ids)
version = served.signatures["lockstep_apply_delta"](prefix=tf.constant(delta + "/delta"))["version"]
assert int(served.signatures["lockstep_version"]()["version"]) == int(version)
after = served.signatures["serving_default"](ids=ids)
for name, value in full.signatures["serving_default"](ids=ids).items():
    assert value.numpy().tobytes() == after[name].numpy().tobytes(), name
for name, value in other.signatures["serving_default"](ids=ids).items():  # the other one is independent
    np.testing.assert_array_equal(value, before[name])
assert (before["user"].numpy() != after["user"].numpy()).any()
assert not [name for name in sys.modules if name.split(".")[0] in ("lockstep", "hybridbackend")]
"""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", program, exported, delta, full_export_of(folder, 5, tmp_path / "scratch")]
    subprocess.run(command, check=True, env=environ, timeout=300)


def test_increments_with_changed_rows_alone_are_merged(trained, tmp_path):
    """The form of increments that have only the changed rows of a table."""
    folder, exported = trained
    copy = shutil.copytree(folder, tmp_path / "job")
    paths = increments(copy)
    state = tensors_of(increments(folder)[1])["table"]
    rng = np.random.default_rng(0)
    held = {}
    for prefix in paths[2:]:
        tensors = tensors_of(prefix)
        del tensors["table"]
        ids = rng.permutation(ROWS)[:5].astype(np.int64)
        values = rng.normal(size=[5, DIM]).astype(np.float32)
        tensors |= {"table-changed-ids": ids, "table-changed-values": values}
        for file in glob.glob(f"{glob.escape(prefix)}.*"):
            os.remove(file)
        written(prefix, tensors)
        state = state.copy()
        state[ids] = values
        held.update(zip(ids.tolist(), values.tolist(), strict=True))
    served = Served(exported)
    # From one increment with the whole table to a later one with some rows.
    first = delta_of(exported, paths[3], tmp_path / "deltas")
    assert served.apply(first)
    second = delta_of(first)
    changed = tensors_of(f"{second}/delta")
    assert len(changed["table-changed-ids"]) == 5
    served.apply(second)
    np.testing.assert_array_equal(
        np.frombuffer(served.outputs()["table"], np.float32).reshape(-1, DIM), state[IDS.clip(0, ROWS - 1)]
    )
    # Three increments with changed rows: the last value of each counts.
    third = delta_files.read_record(delta_of(exported, paths[1], tmp_path / "others"))
    merged = tensors_of(f"{delta_of(tmp_path / 'others' / delta_files.name_of(third.export, 1))}/delta")
    assert dict(zip(merged["table-changed-ids"].tolist(), merged["table-changed-values"].tolist(), strict=True)) == held


def test_a_model_without_dynamic_tables(tmp_path):
    rng = np.random.default_rng(0)
    state = {"table": rng.normal(size=[ROWS, DIM]).astype(np.float32), "bias": np.float32(0.5)}
    os.makedirs(tmp_path / "job/.incremental_checkpoint")
    base = written(tmp_path / "job/model.ckpt-0", {**state, "lockstep-link": np.array([3, 0])})

    def of_table():
        ids = tf.placeholder(tf.int64, [None])
        table = tf.get_variable("table", [ROWS, DIM], use_resource=True)
        rows = tf.nn.embedding_lookup(table, ids) + tf.get_variable("bias", [], use_resource=True)
        return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})

    since = exported = export(tmp_path / "exports", base, of_table, updatable=True)
    served = Served(exported)
    names = [f"model.ckpt-0-to-{step}" for step in (1, 2)]
    for number, name in enumerate(names):
        ids = rng.permutation(ROWS)[:4]
        state["table"][ids] = rng.normal(size=[4, DIM])
        state["bias"] += np.float32(1.0)
        changed = {"table-changed-ids": ids, "table-changed-values": state["table"][ids], "bias": state["bias"]}
        link = np.array([4 + number, 3 + number])
        written(tmp_path / "job/.incremental_checkpoint" / name, {**changed, "lockstep-link": link})
        deltas.chain.Chain("model.ckpt-0", names[: number + 1]).write(f"{tmp_path}/job")
        since = delta_of(since)
        assert served.apply(since) == 4 + number
        rows = served.call("serving_default", ids=np.arange(ROWS))["rows"]
        np.testing.assert_array_equal(rows, state["table"] + state["bias"])


def test_pieces_of_tables_give_the_same_delta(trained, tmp_path, monkeypatch):
    _, exported = trained
    whole = tensors_of(f"{delta_of(exported, directory=tmp_path / 'one')}/delta")
    monkeypatch.setattr("lockstep._src.saving.increments._PIECE_BYTES", 30)
    pieces = tensors_of(f"{delta_of(exported, directory=tmp_path / 'two')}/delta")
    assert whole.keys() == pieces.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, pieces[name], err_msg=name)


def test_missing_damaged_and_exchanged_increments_are_named(trained, tmp_path):
    folder, exported = trained
    copy = shutil.copytree(folder, tmp_path / "job")
    first, second, third = increments(copy)[:3]

    def of(end):
        return lockstep.export_delta(exported, end, tmp_path / "deltas")

    (data,) = glob.glob(f"{glob.escape(second)}.data*")
    content = Path(data).read_bytes()
    Path(data).write_bytes(bytes(255 - b for b in content))
    with pytest.raises(tf.errors.DataLossError, match=f"{second} is missing or damaged"):
        of(third)
    Path(data).write_bytes(content)
    for file in glob.glob(f"{glob.escape(second)}.*"):
        shutil.copy(file.replace(second, third), file)
    with pytest.raises(tf.errors.DataLossError, match=f"{third} builds on checkpoint id .*{second}, has id"):
        of(third)
    os.remove(f"{second}.index")
    with pytest.raises(tf.errors.DataLossError, match=f"{second} is missing or damaged"):
        of(third)
    with pytest.raises(ValueError, match="model.ckpt-99.*wanted one of the 5 increments on"):
        of(f"{copy}/model.ckpt-99")
    assert of(first)
    assert sorted(os.listdir(tmp_path / "deltas")) == [f"{os.path.basename(exported)}-000001"]
    with pytest.raises(FileExistsError, match="000001 already builds on .*; pass the last delta"):
        of(first)


def test_increments_that_a_new_chain_removes_meanwhile_are_not_called_damaged(trained, tmp_path, monkeypatch):
    folder, exported = trained
    copy = shutil.copytree(folder, tmp_path / "job")
    end = increments(copy)[-1]
    read = deltas.Increment.tensor

    def removed(self, name):
        shutil.rmtree(copy / ".incremental_checkpoint", ignore_errors=True)
        deltas.chain.Chain("model.ckpt-99", []).write(str(copy))
        return read(self, f"{name}-is-gone")

    monkeypatch.setattr(deltas.Increment, "tensor", removed)
    with pytest.raises(tf.errors.FailedPreconditionError, match="a full export is needed"):
        lockstep.export_delta(exported, end, tmp_path / "deltas")
    assert not os.path.exists(tmp_path / "deltas")


def test_a_new_full_checkpoint_asks_for_a_full_export(tmp_path):
    training = Training(tmp_path / "job")
    training.run(0, 2)
    base = training.save()
    exported = export(tmp_path / "exports", base, build, updatable=True)
    assert lockstep.export_delta(exported) is None
    training.run(1)
    training.save()
    delta = delta_of(exported)
    assert delta == f"{tmp_path}/exports/deltas/{os.path.basename(exported)}-000001"
    with training.graph.as_default():
        training.full.save(training.session, f"{tmp_path}/elsewhere/model.ckpt")
    training.run(2)
    newer = training.save()
    assert "-to-" not in newer
    # The same when the full checkpoint is not in the chain yet, such as the one at a session's end.
    with training.graph.as_default():
        later = training.full.save(training.session, f"{tmp_path}/job/model.ckpt", 99)
    with pytest.raises(tf.errors.FailedPreconditionError, match="newest full checkpoint is model.ckpt-99; a full exp"):
        lockstep.export_delta(export(tmp_path / "exports", newer, build, updatable=True))
    newer = later
    for since in (exported, delta):
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"{since}.*a full export is needed"):
            lockstep.export_delta(since)
    again = export(tmp_path / "exports", newer, build, updatable=True)
    assert lockstep.export_delta(again) is None
    training.run(3)
    training.save()
    served = Served(again)
    served.apply(delta_of(again))
    assert served.outputs() == full_export(tmp_path / "job", 1, tmp_path / "scratch")


def test_a_full_checkpoint_that_the_session_removed_asks_for_a_full_export(tmp_path):
    training = Training(tmp_path / "job")
    base = training.save()
    exported = export(tmp_path / "exports", base, build, updatable=True)
    training.run(1)
    training.save()
    for file in glob.glob(f"{glob.escape(base)}.*"):
        os.remove(file)
    with pytest.raises(tf.errors.DataLossError, match=f"{base} is missing or damaged"):
        lockstep.export_delta(exported)
    with training.graph.as_default():
        training.full.save(training.session, f"{tmp_path}/job/model.ckpt", 99)
    with pytest.raises(tf.errors.FailedPreconditionError, match="newest full checkpoint is model.ckpt-99; a full exp"):
        lockstep.export_delta(exported)


def test_of_two_deltas_with_one_name_the_first_stays(trained, tmp_path):
    _, exported = trained
    delta = delta_of(exported, directory=tmp_path)
    tensors = tensors_of(f"{delta}/delta")
    with pytest.raises(FileExistsError, match="another process made .*-000001 at the same time"):
        deltas._write(delta, delta_files.read_record(delta), {"other": np.zeros(1)})
    assert tensors.keys() == tensors_of(f"{delta}/delta").keys()
    assert os.listdir(tmp_path) == [os.path.basename(delta)]


def test_arguments_are_checked(trained, tmp_path):
    folder, exported = trained
    with pytest.raises(ValueError, match="wanted the folder of an export with updatable=True"):
        lockstep.export_delta(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("w", [2], use_resource=True)
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, f"{tmp_path}/plain/model.ckpt")

    def one():
        w = tf.get_variable("w", [2], use_resource=True)
        return tf.saved_model.predict_signature_def({"x": tf.placeholder(tf.float32)}, {"w": w})

    with pytest.raises(ValueError, match="plain/model.ckpt' has no checkpoint id.*incremental_checkpoint_secs"):
        export(tmp_path / "exports", path, one, updatable=True)

    def with_table():
        tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0, name="own")
        return build()

    with pytest.raises(ValueError, match="the model has own, which is neither a variable nor a dynamic table"):
        export(
            tmp_path / "exports",
            increments(folder)[0].replace(".incremental_checkpoint/", "").split("-to-")[0],
            with_table,
            updatable=True,
        )
    copy = shutil.copytree(exported, tmp_path / "damaged")
    file = copy / "assets.extra/lockstep_export.json"
    file.write_text(file.read_text().replace('"sequence": 0', '"sequence": 1'))
    with pytest.raises(ValueError, match="lockstep_export.json is damaged"):
        lockstep.export_delta(copy)


class Chain:
    """A chain of generated increments of two dynamic tables and a variable, and its states as dicts."""

    def __init__(self, folder, count, seed):
        self.folder, self._rng = str(folder), np.random.default_rng(seed)
        # A number without a key: it came and went between two checkpoints.
        self._stranger = np.array([1 << 40], np.int64)
        self.states = [{"int": {}, "words": {}, "rows": {}}]
        self._versions = [7]
        for i in range(8):
            self.states[0]["int"][i] = self._row()
            self.states[0]["words"][b"w%d" % i] = self._row()
        self.states[0]["rows"] = {i: self._row() for i in range(6)}
        base = self.states[0]
        tensors = {"rows": np.array([*base["rows"].values()]), "lockstep-link": np.array([7, 0])}
        for name in ("int", "words"):
            tensors |= {
                f"{name}-keys": self._keys(name, base[name]),
                f"{name}-values": np.array([*base[name].values()]),
            }
        os.makedirs(f"{self.folder}/.incremental_checkpoint")
        written(f"{self.folder}/model.ckpt-0", tensors)
        self.names = [f"model.ckpt-0-to-{i}" for i in range(1, count + 1)]
        for name in self.names:
            self._add(name)
        deltas.chain.Chain("model.ckpt-0", self.names).write(self.folder)

    def _row(self):
        return self._rng.normal(size=2).astype(np.float32)

    def _keys(self, name, keys):
        return np.array([*keys], object if name == "words" else np.int64)

    def _add(self, name):
        """Adds an increment: some keys go, of which some come back in it, and some are set; at random rows, or all."""
        state = {table: dict(rows) for table, rows in self.states[-1].items()}
        tensors = {"lockstep-link": np.array([self._versions[-1] + 10, self._versions[-1]])}
        for table in ("int", "words"):
            removed = [key for key in state[table] if self._rng.random() < 0.4]
            new = [i if table == "int" else b"w%d" % i for i in self._rng.permutation(14)[:3].tolist()]
            back = [key for key in removed if self._rng.random() < 0.3]
            for key in removed:
                del state[table][key]
            changed = {key: self._row() for key in {*new, *back}}
            state[table].update(changed)
            numbers = numbers_of(removed) if table == "words" else np.array(removed, np.int64)
            tensors |= {
                f"{table}-changed-removed": np.concatenate([numbers, self._stranger]),
                f"{table}-changed-keys": self._keys(table, changed),
                f"{table}-changed-values": np.array([*changed.values()], np.float32).reshape(-1, 2),
            }
        changed = {int(i): self._row() for i in self._rng.permutation(6)[:2]}
        state["rows"].update(changed)
        if self._rng.random() < 0.5:
            tensors["rows"] = np.array([state["rows"][i] for i in range(6)])
        else:
            tensors |= {"rows-changed-ids": np.array([*changed]), "rows-changed-values": np.array([*changed.values()])}
        written(f"{self.folder}/.incremental_checkpoint/{name}", tensors)
        self.states.append(state)
        self._versions.append(self._versions[-1] + 10)

    def since(self, folder, number):
        """Writes the record of a delta that ends with increment `number`, the base for 0."""
        os.makedirs(folder)
        variables, tables = {"rows": ([6, 2], tf.float32)}, {"int": (2, tf.int64), "words": (2, tf.string)}
        base = f"{self.folder}/model.ckpt-0"
        record = delta_files.Record("9", 1, self._versions[number], 1, base, variables, tables)
        delta_files.write_delta_record(str(folder), record)
        return str(folder)


def applied(state, delta):
    """Returns a state after a delta, with numpy."""
    state = {table: dict(rows) for table, rows in state.items()}
    for table in ("int", "words"):
        removed, keys = delta[f"{table}-removed-keys"].tolist(), delta[f"{table}-changed-keys"].tolist()
        assert not {*removed} & {*keys} and len({*keys}) == len(keys)
        for key in removed:
            state[table].pop(key, None)
        state[table].update(zip(keys, delta[f"{table}-changed-values"], strict=True))
    state["rows"].update(zip(delta["rows-changed-ids"].tolist(), delta["rows-changed-values"], strict=True))
    return {table: {key: row.tobytes() for key, row in rows.items()} for table, rows in state.items()}


@pytest.mark.parametrize("seed", range(3))
def test_deltas_between_any_two_increments_have_the_effect_of_those_between(tmp_path, seed):
    chain = Chain(tmp_path / "job", 5, seed)
    for first in range(5):
        for last in range(first + 1, 6):
            since = chain.since(tmp_path / f"{first}-{last}" / "since", first)
            end = f"{chain.folder}/.incremental_checkpoint/{chain.names[last - 1]}"
            delta = tensors_of(f"{lockstep.export_delta(since, end)}/delta")
            state = applied(chain.states[first], delta)
            assert state == applied(chain.states[last], {**delta, **none_of(delta)}), (first, last)


def test_a_checkpoint_that_is_older_than_since_is_named_so(tmp_path):
    chain = Chain(tmp_path / "job", 3, 0)
    older = f"{chain.folder}/.incremental_checkpoint/{chain.names[0]}"
    with pytest.raises(ValueError, match=f"checkpoint is '{older}', which is older than .*since .*; wanted a newer"):
        lockstep.export_delta(chain.since(tmp_path / "since", 2), older)


def test_a_lost_list_of_increments_is_named(tmp_path):
    chain = Chain(tmp_path / "job", 3, 0)
    os.remove(f"{chain.folder}/.incremental_checkpoint/chain.json")
    with pytest.raises(tf.errors.DataLossError, match="chain.json is missing. It lists .* has 3 of them"):
        lockstep.export_delta(chain.since(tmp_path / "since", 1))


# Promise (deltas.md): exports and deltas are durable before they get their names; leftovers of a killed one are
# removed.
def test_exports_and_deltas_are_synced_before_they_get_their_names(trained, tmp_path, monkeypatch):
    synced, renamed = set(), []
    gfile = whole_files._gfile()
    sync, rename = whole_files.sync, gfile.rename
    monkeypatch.setattr(whole_files, "sync", lambda path: (synced.add(path), sync(path)))

    def check_and_rename(source, target):
        written = {os.path.join(place, name) for place, _, names in os.walk(source) for name in names}
        assert written and written <= synced
        rename(source, target)
        renamed.append(target)

    monkeypatch.setattr(gfile, "rename", check_and_rename)
    folder, exported = trained
    delta = delta_of(exported, directory=tmp_path)
    again = export(f"{tmp_path}/again", tf.train.latest_checkpoint(folder), build, updatable=True)
    assert renamed == [delta, again] and {str(tmp_path), os.path.dirname(again)} <= synced


# Promise (deltas.md): exports and deltas are durable before they get their names; leftovers of a killed one are
# removed.
def test_what_a_killed_process_left_is_removed(trained, tmp_path):
    _, exported = trained
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    left = tmp_path / whole_files.draft_name("1-000001").replace(f"-{os.getpid()}-", f"-{process.pid}-")
    (left / "a").mkdir(parents=True)
    delta = delta_of(exported, directory=tmp_path)
    assert os.listdir(tmp_path) == [os.path.basename(delta)]


def none_of(delta):
    """Returns the tensors of a delta without changes."""
    return {name: value[:0] for name, value in delta.items() if name != "lockstep-link"}


def test_two_removed_strings_with_one_number_ask_for_a_full_export(tmp_path, monkeypatch):
    chain = Chain(tmp_path / "job", 2, 0)
    monkeypatch.setattr(string_numbers, "numbers_of", lambda strings, salt=0: np.full(len(strings), 1 << 40))
    with pytest.raises(tf.errors.FailedPreconditionError, match="of table 'words' the keys .*share the number"):
        lockstep.export_delta(chain.since(tmp_path / "since", 0))


def test_strings_that_have_their_second_number_are_removed(tmp_path, monkeypatch):
    chain = Chain(tmp_path / "job", 1, 0)
    second = numbers_of([b"w1"], 1)
    path = f"{chain.folder}/.incremental_checkpoint/{chain.names[0]}"
    tensors = tensors_of(path)
    keep = tensors["words-changed-keys"] != b"w1"
    tensors |= {"words-changed-removed": second, "words-changed-keys": tensors["words-changed-keys"][keep]}
    tensors["words-changed-values"] = tensors["words-changed-values"][keep]
    for file in glob.glob(f"{glob.escape(path)}.*"):
        os.remove(file)
    written(path, tensors)
    delta = tensors_of(f"{lockstep.export_delta(chain.since(tmp_path / 'since', 0))}/delta")
    assert delta["words-removed-keys"].tolist() == [b"w1"]
