"""A save that fails at a file size limit is an error on every worker; the checkpoint before it stays."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import call_workers
from tests.multiprocess.saving import file_size_limit_worker as worker

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize(
    ("kind", "workers", "limited", "limit", "what"),
    [
        # One worker's tables are plain variables. Several write theirs in slices, and all learn of an error.
        ("static", 1, (0,), 20_000, "checkpoint {}/model.ckpt-4 cannot be saved: {}/model.ckpt-4_temp/part-00000"),
        (
            "static",
            2,
            (1,),
            20_000,
            "checkpoint {}/model.ckpt-4 cannot be saved: rank 1: {}/model.ckpt-4_temp/part-00001",
        ),
        (
            "static",
            2,
            (0, 1),
            20_000,
            "checkpoint {}/model.ckpt-4 cannot be saved: rank 0: {}/model.ckpt-4_temp/part-00000",
        ),
        # A worker's rows of a dynamic table.
        ("dynamic", 1, (0,), 20_000, "checkpoint {}/model.ckpt-4 cannot be saved: "),
        ("dynamic", 2, (1,), 20_000, "checkpoint {}/model.ckpt-4 cannot be saved: "),
        ("increments", 2, (1,), 20_000, "checkpoint {}/.incremental_checkpoint/model.ckpt-2-to-3 cannot be saved: "),
        # Only worker 0 writes these files, after all slices: the state file and the graph's description.
        ("state", 2, (0,), 40, "checkpoint {}/model.ckpt-4 cannot be saved: {}/checkpoint.tmp"),
        ("small", 2, (0,), 20_000, "checkpoint {}/model.ckpt-4 cannot be saved: {}/model.ckpt-4.meta"),
        ("small", 2, (0,), -10_000, "CheckpointSaverHook of {}: {}/graph.pbtxt"),
    ],
)
def test_every_worker_fails_and_names_the_file_and_the_cause(kind, workers, limited, limit, what, tmp_path):
    folder = str(tmp_path / "saved")
    outcomes = call_workers(worker.train, workers, folder, kind, limited, limit, timeout_s=120, check=False)
    for outcome in outcomes:
        assert outcome.exit_code == 1, outcome
        raised = outcome.error.rpartition("\ntensorflow.python.framework.errors_impl.")[2]
        kind_of_error, _, message = raised.partition(": ")
        # If several workers fail, one may receive another's failure before its own.
        together = kind in ("static", "dynamic", "increments")
        own = ["ResourceExhaustedError"] if outcome.rank in limited or together else []
        others = ["CancelledError"] if set(limited) != {outcome.rank} else []
        assert kind_of_error in own + others, raised
        assert what.format(folder, folder) in message and message.rstrip().endswith("; File too large"), raised
    # The last checkpoint is complete. It is the new one if only the graph's description is missing.
    step = 4 if ".meta" in what else 2
    last = tf.train.latest_checkpoint(folder)
    if limit < 0:
        assert last is None
        return
    assert last == f"{folder}/model.ckpt-{step}"
    reader = tf.train.load_checkpoint(last)
    for name in ("static", "dynamic-values"):
        rows = reader.get_tensor(name)
        np.testing.assert_array_equal(rows, np.full_like(rows, step))


def test_events_that_a_session_cannot_write_until_its_end_are_an_error_that_names_the_file(tmp_path):
    outcomes = call_workers(worker.train, 2, str(tmp_path), "events", (0,), 1, timeout_s=120, check=False)
    (events,) = tmp_path.glob("events*")
    assert outcomes[0].exit_code == 1 and f"\nIndexError: {events}; File too large" in outcomes[0].error, outcomes
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-4"
