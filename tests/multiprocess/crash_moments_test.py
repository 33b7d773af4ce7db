"""Workers that are killed at any moment of a save leave the last good checkpoint, and no half one."""

import json

import numpy as np
import tensorflow.compat.v1 as tf

from lockstep._src.saving.tables_test import slots_here
from lockstep.testing import call_workers
from tests.multiprocess import crash_moments_worker as worker

MOMENTS, SEED = 20, 5


def test_the_last_good_checkpoint_restores(tmp_path):
    (done,) = call_workers(worker.work, 1, str(tmp_path), MOMENTS, SEED, timeout_s=240)
    cut_short = sum(_is_cut_short(tmp_path / str(moment)) for moment in range(MOMENTS))
    for incremental in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            table, static, dense, _, saver = worker.build(incremental)
            session.run(tf.global_variables_initializer())
            held = [*table.export(), *table.export_slots(*slots_here()), static.read_value(), dense.read_value()]
            for moment in range(MOMENTS):
                workers, _, saves_increments = worker.KINDS[moment % len(worker.KINDS)]
                if saves_increments != incremental:
                    continue
                for path, step in _complete(tmp_path / str(moment), done[moment]):
                    saver.restore(session, path)
                    _check(session.run(held), step, workers, f"{path}, {worker.KINDS[moment % len(worker.KINDS)]}")
    # Otherwise the moments were not in the saves, and this proves nothing.
    assert cut_short > MOMENTS / 4


def _is_cut_short(folder):
    """Whether a save had begun and not ended."""
    return any(folder.glob("*_temp*")) or any(folder.glob(".incremental_checkpoint/*_temp*"))


def _complete(folder, done):
    """The checkpoints of a folder, and of each the step that it, with what builds on it, has."""
    indices = sorted(folder.glob("*.index"))
    latest = tf.train.latest_checkpoint(str(folder))
    assert f"{latest}.index" in map(str, indices)
    steps = {str(index.with_suffix("")): int(index.stem.rpartition("-")[2]) for index in indices}
    chain = folder / ".incremental_checkpoint" / "chain.json"
    if chain.exists():
        chain = json.loads(chain.read_text())
        base = str(folder / chain["base"])
        assert base in steps
        if chain["increments"]:
            steps[base] = int(chain["increments"][-1].rpartition("-")[2])
    # What a worker was told to be saved is there.
    assert max(steps.values()) >= done
    return steps.items()


def _check(held, step, workers, where):
    keys, rows, versions, frequencies, slots, static, dense = held
    assert keys.tolist() == list(range(worker.KEYS)), where
    for values, expected in ((rows, step), (slots, 1), (frequencies, step * workers), (static, step), (dense, step)):
        np.testing.assert_array_equal(values, expected, err_msg=where)
    assert len(set(versions.tolist())) == 1, where
