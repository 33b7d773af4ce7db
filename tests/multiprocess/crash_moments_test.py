"""A process that is killed at any moment of a save leaves the last good checkpoint, and no half one."""

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from lockstep._src.saving.tables_test import slots_here
from lockstep.testing import call_workers
from tests.multiprocess import crash_moments_worker as worker

MOMENTS, SEED = 20, 5


def test_the_last_good_checkpoint_restores(tmp_path):
    assert call_workers(worker.work, 1, str(tmp_path), MOMENTS, SEED, timeout_s=120) == [MOMENTS]
    cut_short = 0
    with tf.Graph().as_default(), tf.Session() as session:
        table, dense, _, saver = worker.build()
        held = [*table.export()[:2], *table.export_slots(*slots_here()), dense.read_value()]
        for moment in range(MOMENTS):
            folder = tmp_path / str(moment)
            complete = sorted(folder.glob("*.index"))
            cut_short += any(folder.glob("*_temp*"))
            latest = tf.train.latest_checkpoint(str(folder))
            assert f"{latest}.index" in map(str, complete)
            for path in (Path(latest), *(index.with_suffix("") for index in complete)):
                step = int(path.name.rpartition("-")[2])
                saver.restore(session, str(path))
                keys, rows, slots, values = session.run(held)
                assert keys.tolist() == list(range(worker.KEYS)), path
                np.testing.assert_array_equal(rows, step, err_msg=str(path))
                np.testing.assert_array_equal(slots, 1, err_msg=str(path))
                np.testing.assert_array_equal(values, step, err_msg=str(path))
    # Otherwise the moments were not in the saves, and this proves nothing.
    assert cut_short > MOMENTS / 4
