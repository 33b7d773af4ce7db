"""A checkpoint of four workers is one of plain TensorFlow's, and restores on any number of workers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import call_workers, run_module
from tests.multiprocess.saving import checkpoint_worker
from tests.parity.model import assembled

pytestmark = pytest.mark.oldest

WORKER = "tests.multiprocess.saving.checkpoint_worker"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """Returns the folder of a checkpoint that four workers wrote, and the values that each held then."""
    base = tmp_path_factory.mktemp("saved")
    folder, out = base / "checkpoints", base / "held"
    run_module(4, WORKER, "save", str(folder), str(out), timeout_s=120)
    return folder, [dict(np.load(f"{out}.{rank}.npz")) for rank in range(4)]


def test_stock_tensorflow_reads_every_row_and_slot_in_place(saved):
    folder, held = saved
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    shapes = reader.get_variable_to_shape_map()
    assert sorted(shapes) == sorted(held[0])
    assert shapes["item_table"] == [101, 8] and shapes["item_table/Adam_1"] == [101, 8]
    for name, shape in shapes.items():
        np.testing.assert_array_equal(reader.get_tensor(name), assembled(held, name, tuple(shape)), err_msg=name)


# Promise (hybridbackend.md): rows are stored in the order of their ids (HybridBackend, a wrong result: exported and
# rescaled sharded tables have permuted rows).
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_restores_on_any_number_of_workers(saved, workers, tmp_path):
    written, held = saved
    # A session writes into the folder that it restores from.
    folder = shutil.copytree(written, tmp_path / "checkpoints")
    out = tmp_path / "restored"
    run_module(workers, WORKER, "restore", str(folder), str(out), timeout_s=120)
    restored = [dict(np.load(f"{out}.{rank}.npz")) for rank in range(workers)]
    shapes = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder))).get_variable_to_shape_map()
    for name, shape in shapes.items():
        np.testing.assert_array_equal(
            assembled(restored, name, tuple(shape)), assembled(held, name, tuple(shape)), err_msg=name
        )


def _restore(folder, out):
    tf.disable_v2_behavior()
    checkpoint_worker.main("restore", folder, out)


def test_a_damaged_state_file_ends_all_workers_and_names_itself(saved, tmp_path):
    """TensorFlow ignores a state file that it cannot read, and training would begin from the start."""
    folder = shutil.copytree(saved[0], tmp_path / "checkpoints")
    state = folder / "checkpoint"
    state.write_bytes(state.read_bytes()[:30])
    for outcome in call_workers(_restore, 2, str(folder), str(tmp_path / "restored"), timeout_s=120, check=False):
        assert f"DataLossError: {state}: the state file is damaged" in outcome.error
    assert not list(tmp_path.glob("restored*"))


def test_one_worker_writes_what_belongs_to_all_and_nothing_is_left_aside(saved):
    folder, _ = saved
    names = {p.name for p in folder.iterdir()}
    assert "checkpoint" in names and "graph.pbtxt" in names
    assert not [n for n in names if "_temp" in n]
    assert len([n for n in names if n.startswith("events.")]) == 1
