"""A worker that is killed during a save leaves the last good checkpoint, and no partial one."""

import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import call_workers
from tests.multiprocess.saving import crash_worker as worker

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize(
    ("workers", "stage", "killed"), [(2, "written", 1), (2, "merged", 0), (2, "renaming", 0), (1, "merged", 0)]
)
def test_last_good_checkpoint_is_left(workers, stage, killed, tmp_path):
    folder = tmp_path / "checkpoints"
    outcomes = call_workers(worker.work, workers, str(folder), stage, timeout_s=90, check=False)
    assert outcomes[killed].exit_code == -signal.SIGKILL, outcomes[killed].error
    for other in outcomes[:killed] + outcomes[killed + 1 :]:
        # It did not hang.
        assert f"rank {killed}" in (other.error or "")
    # Every checkpoint with an index is complete, in every byte that TensorFlow reads.
    found = sorted(Path(path).with_suffix("") for path in folder.glob("*.index"))
    assert [path.name for path in found][:1] == ["model.ckpt-1"]
    for path in found:
        reader = tf.train.load_checkpoint(str(path))
        step = int(path.name.rpartition("-")[2])
        rows = [worker.ROWS, worker.DIM]
        for name, shape in {"table": rows, "dynamic-values": rows, "dense": [worker.ROWS]}.items():
            np.testing.assert_array_equal(reader.get_tensor(name), np.full(shape, step, np.float32))
    latest = tf.train.latest_checkpoint(str(folder))
    assert Path(latest) in found
    assert len(found) == 1
    if stage == "merged":
        # A new job resumes from there; leftovers of the dead one do not disturb it.
        assert call_workers(worker.restored, 2, str(folder), timeout_s=60) == [[[1.0]] * 4] * 2
        assert call_workers(worker.work, 1, str(folder), "none", timeout_s=60) == ["saved"]
        assert tf.train.latest_checkpoint(str(folder)) == f"{folder}/model.ckpt-2"
        assert not list(folder.glob("*_temp*"))
