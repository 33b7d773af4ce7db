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
    """Returns the folder of a job whose full checkpoint at its end was removed; `<folder>-end` has the final values."""
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
    for outcome in outcomes:
        assert re.search("ckpt-0-to-2: (rank 0: )?table '.*one between them is missing", str(outcome.error)), outcome
