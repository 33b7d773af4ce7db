"""Increments of a job without dynamic tables have the changed rows of sharded tables; any number of workers resumes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import call_workers
from tests.multiprocess.saving import static_increments_worker as worker

pytestmark = pytest.mark.oldest

STEPS, WORKERS = 5, 2
LINK = "lockstep-link"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Returns the folder of a job whose last full checkpoint was removed; `<folder>-end` has the final values."""
    folder = tmp_path_factory.mktemp("trained") / "job"
    assert call_workers(worker.work, WORKERS, str(folder), STEPS, timeout_s=120) == [0, 0]
    shutil.rmtree(folder)
    shutil.move(f"{folder}-killed", folder)
    return folder


def _copy(source: Path, target: Path) -> Path:
    """Copies a folder of checkpoints; its state file names files by their whole paths."""
    shutil.copytree(source, target)
    state = target / "checkpoint"
    state.write_text(state.read_text().replace(str(source), str(target)))
    return target


def _increments(folder: Path) -> list[tf.train.NewCheckpointReader]:
    increments = folder / ".incremental_checkpoint"
    names = json.loads((increments / "chain.json").read_text())["increments"]
    return [tf.train.load_checkpoint(str(increments / name)) for name in names]


def _values(prefix: str) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != LINK}


def test_increments_have_the_rows_that_changed(trained):
    increments = _increments(trained)
    assert len(increments) == STEPS
    end = _values(f"{trained}-end/model.ckpt")
    for i, reader in enumerate(increments):
        shapes = reader.get_variable_to_shape_map()
        for name in ("user", "user/Adagrad"):
            ids = reader.get_tensor(f"{name}-changed-ids")
            assert name not in shapes and sorted(ids.tolist()) == np.unique(worker.ids_of(i)).tolist()
        assert "few-changed-ids" not in shapes and shapes["few"] == [worker.TABLES["few"], worker.DIM]
        assert shapes["still-changed-ids"] == [0] and shapes["still-changed-values"] == [0, worker.DIM]
        assert sorted(reader.get_tensor("assigned-changed-ids").tolist()) == [0, 1]
    last = increments[-1]
    np.testing.assert_array_equal(
        last.get_tensor("user-changed-values"), end["user"][last.get_tensor("user-changed-ids")]
    )


def test_checkpoints_of_the_chain_have_their_numbers(trained):
    base = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(trained))).get_tensor(LINK)
    links = [base, *(reader.get_tensor(LINK) for reader in _increments(trained))]
    assert base[1] == 0 and len({own for own, _ in links}) == STEPS + 1
    assert all(link[1] == before[0] for before, link in zip(links, links[1:], strict=False))


# Promise (checkpoints.md): increments have the changed rows of sharded tables; any number of workers resumes from them.
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_resumes_from_them(trained, workers, tmp_path):
    folder = _copy(trained, tmp_path / "job")
    assert call_workers(worker.work, workers, str(folder), STEPS, timeout_s=120) == [STEPS] * workers
    expected, resumed = _values(f"{trained}-end/model.ckpt"), _values(f"{folder}-end/model.ckpt")
    assert sorted(resumed) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    assert (resumed["assigned"] != 0).any()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_increment_is_named_on_all_workers(trained, workers, tmp_path):
    folder = _copy(trained, tmp_path / "job")
    increments = folder / ".incremental_checkpoint"
    for file in increments.glob("*-to-3.*"):
        shutil.copy(file, str(file).replace("-to-3.", "-to-2."))
    outcomes = call_workers(worker.work, workers, str(folder), STEPS, timeout_s=120, check=False)
    message = "ckpt-0-to-2: (rank 0: )?table '.*checkpoint between them is missing"
    for outcome in outcomes:
        assert re.search(message, str(outcome.error)), outcome


def _trained(rows: int, steps: int) -> np.ndarray:
    """Returns what Adagrad makes of a table of ones, [rows, DIM]."""
    table, sums = np.ones([rows, worker.DIM]), np.full([rows, worker.DIM], 0.1)
    for step in range(steps):
        for i in worker.ids_of_small(step, rows):
            gradient = 2 * table[i]
            sums[i] += gradient**2
            table[i] -= 0.1 * gradient / np.sqrt(sums[i])
    return table


# On 3 workers, a table of 3 rows is replicated; on 2 or 1 it is sharded. One of 2 rows is sharded on one worker only.
# Promise (checkpoints.md): increments have the changed rows of sharded tables; any number of workers resumes from them.
@pytest.mark.parametrize(
    "tables",
    [{"t": 3, "two": 2, "big": 40}, pytest.param({"t": 3, "two": 2}, marks=pytest.mark.long)],
    ids=["one is big", "all small"],
)
def test_tables_that_are_sharded_on_some_numbers_of_workers_resume_on_all(tables, tmp_path):
    steps = 0
    for workers in (2, 3, 2, 1, 2):
        ended = call_workers(worker.resume, workers, str(tmp_path), tables, 2, timeout_s=200)
        assert [begin for begin, _ in ended] == [steps] * workers
        steps += 2
        for _, held in ended:
            for name, rows in tables.items():
                np.testing.assert_allclose(held[name], _trained(rows, steps), rtol=1e-5, err_msg=f"{name} on {workers}")
