"""Tables that four workers saved: plain TensorFlow reads them, and any number of workers continues with them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.saving.saved_models import export
from lockstep._src.tables import dynamic
from lockstep.testing import call_workers
from tests.multiprocess.saving import dynamic_checkpoint_worker as worker

pytestmark = pytest.mark.oldest

STEPS, INCREMENTS = 6, 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns the folder of a checkpoint that four workers wrote, and the values that each held then."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    outcomes = call_workers(worker.first, 4, str(folder), STEPS, timeout_s=120)
    return folder, [after for _, after, _ in outcomes], outcomes[0][2]


def by_key(parts, name):
    """Returns a table's values by key, from all workers' parts. No two workers have the same key."""
    rows = {}
    for part in parts:
        keys, *columns = part[name][:-1]
        assert not set(keys) & set(rows)
        rows.update((key, [column[i] for column in columns]) for i, key in enumerate(keys))
    return rows


def test_tables_without_keys_are_saved(saved):
    folder, _, _ = saved
    reader = tf.train.load_checkpoint(f"{folder}-empty/model.ckpt")
    assert all(reader.get_tensor(f"{name}-keys").shape == (0,) for name in ("plain", "words"))


# Promise (checkpoints.md): `init_from_checkpoint` and warm starts give dynamic tables their rows, on any number of
# workers.
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_begins_with_its_rows(saved, workers):
    folder, held, rows = saved
    outcomes = call_workers(worker.begun, workers, str(folder), timeout_s=120)
    for name in worker.TABLES:
        begun, wanted = by_key([found for found, _ in outcomes], name), by_key(held, name)
        # Rows and slots are restored; versions and frequencies are not.
        assert {key: [row, *slots] for key, (row, _, _, *slots) in begun.items()} == {
            key: [row, *slots] for key, (row, _, _, *slots) in wanted.items()
        }
        assert {(versions, frequencies) for _, versions, frequencies, *_ in begun.values()} == {(0, 0)}
    assert all(static == rows["static"] for _, static in outcomes)


def test_plain_tensorflow_reads_all_rows_slots_and_counts(saved):
    folder, held, rows = saved
    reader = tf.train.load_checkpoint(str(folder))
    for name in worker.TABLES:
        tensors = [f"{name}-{part}" for part in ("keys", "values", "versions", "freqs")]
        tensors += [f"{name}/{slot.decode()}" for slot in reader.get_tensor(f"{name}-slots")]
        assert len(tensors) == 5
        keys, *columns = [reader.get_tensor(tensor).tolist() for tensor in tensors]
        read = {key: [column[i] for column in columns] for i, key in enumerate(keys)}
        assert read == by_key(held, name) and len(read) == len(keys) > 10, name
        parts = reader.get_tensor(f"{name}-parts").tolist()
        assert [b - a for a, b in zip(parts, parts[1:], strict=False)] == [len(part[name][0]) for part in held]
    assert reader.get_tensor("static")[:501].tolist() == rows["static"]
    assert reader.get_tensor("static/Adagrad").shape == (601, worker.DIM)
    waiting = reader.get_tensor("counted-keys_filtered")
    assert len(set(waiting.tolist())) == len(waiting) == sum(part["counted"][-1] for part in held) > 0
    # An independent count: all keys that were seen once or twice.
    ids = np.concatenate([worker.batch(i, rank).ravel() for i in range(STEPS) for rank in range(4)])
    seen = dict(zip(*np.unique(ids, return_counts=True), strict=True))
    counts = reader.get_tensor("counted-freqs_filtered")
    assert dict(zip(waiting, counts, strict=True)) == {key: n for key, n in seen.items() if n < 3}


def test_string_keys_of_several_workers_are_exported(saved, tmp_path):
    folder, _, rows = saved

    def build():
        ids = tf.placeholder(tf.string, [None])
        option = dynamic.EmbeddingVariableOption(**worker.TABLES["words"])
        table = dynamic.get_embedding_variable("words", worker.DIM, key_dtype=tf.string, ev_option=option)
        return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": tf.nn.embedding_lookup(table, ids)})

    exported = export(tmp_path, tf.train.latest_checkpoint(str(folder)), build)
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], exported).signature_def["serving_default"]
        words = [str(i) for i in range(-100, 401)]
        served = session.run(signature.outputs["rows"].name, {signature.inputs["ids"].name: words})
    np.testing.assert_array_equal(served, np.array(rows["words"], np.float32))
    assert 0 < np.any(served != 0, 1).sum() < len(words)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_restores_it(saved, workers, tmp_path):
    written, held, rows = saved
    folder = shutil.copytree(written, tmp_path / "checkpoints")
    outcomes = call_workers(worker.work, workers, str(folder), STEPS, timeout_s=120)
    restored = [before for before, _, _ in outcomes]
    for name in worker.TABLES:
        assert by_key(restored, name) == by_key(held, name), name
        assert sum(part[name][-1] for part in restored) == sum(part[name][-1] for part in held)
    # Every worker reads the same rows as the workers that saved them.
    for _, _, seen in outcomes:
        assert seen == rows


def test_increments_of_four_workers_are_restored_by_three(tmp_path):
    folder = tmp_path / "job"
    after = [after for _, after, _ in call_workers(worker.killed, 4, str(folder), INCREMENTS, timeout_s=120)]
    shutil.rmtree(folder)
    shutil.move(f"{folder}-killed", folder)
    assert [path.name for path in folder.glob("*.index")] == ["model.ckpt-0.index"]
    assert len(list((folder / ".incremental_checkpoint").glob("*.index"))) >= INCREMENTS - 1
    outcomes = call_workers(worker.resumed, 3, str(folder), INCREMENTS, timeout_s=120)
    for name in worker.TABLES:
        assert by_key([before for before, _, _ in outcomes], name) == by_key(after, name), name
        waiting = [sum(part[name][-1] for part in parts) for parts in ([o[0] for o in outcomes], after)]
        assert waiting[0] == waiting[1]


def test_counters_of_the_filter_admit_nobody_late(saved, tmp_path):
    written, _, _ = saved
    folder = shutil.copytree(written, tmp_path / "checkpoints")
    outcomes = call_workers(worker.work, 3, str(folder), STEPS + 1, timeout_s=120)
    ids = [worker.batch(i, rank).ravel() for i in range(STEPS) for rank in range(4)]
    ids += [worker.batch(STEPS, rank).ravel() for rank in range(3)]
    keys, counts = np.unique(np.concatenate(ids), return_counts=True)
    newest = set(np.concatenate(ids[-3:]).tolist())
    admitted = set(by_key([after for _, after, _ in outcomes], "bloom"))
    assert {key for key, n in zip(keys.tolist(), counts, strict=True) if n >= 3 and key in newest} <= admitted
    # Exact counts continue exactly.
    exact = set(by_key([after for _, after, _ in outcomes], "counted"))
    assert exact == {key for key, n in zip(keys.tolist(), counts, strict=True) if n >= 3}
