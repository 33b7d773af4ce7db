"""A worker dies at any point of a save: the last good checkpoint remains, and the others name the worker.

Each worker is killed at each point that it passes, in jobs of two workers; in full checkpoints also in jobs of one. The
points are names, not times: a job that is not killed at its point fails its test.
"""

# Promise of this file (checkpoints.md): a worker that dies at any moment of a save leaves the last complete checkpoint.

import json
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src.saving.table_saveables_test import slots_here
from lockstep.testing import call_workers
from tests.multiprocess.saving import crash_moments_worker as worker


def _case(kind, workers, killed, point):
    """Returns a case. `make test` has each case in which the workers differ, and the cases of increments once."""
    long = workers == 1 or (kind != "full" and killed > 0)
    return pytest.param(kind, workers, killed, point, marks=[pytest.mark.long] if long else [])


_CASES = [
    _case(kind, workers, killed, point)
    for kind, points in worker.POINTS.items()
    for point in points
    for workers in (points[point].workers if kind == "full" else (2,))
    for killed in range(workers)
    if killed in points[point].passed_by
]


@pytest.fixture(scope="module")
def held():
    """Returns a function that restores a checkpoint of a kind and returns all values."""
    sessions = {}

    def restore(kind, path):
        kind = "full" if kind == "full" else "increment"
        if kind not in sessions:
            with tf.Graph().as_default():
                table, static, dense, _, saver = worker.build(kind)
                values = [*table.export(), *table.export_slots(*slots_here()), static.read_value(), dense.read_value()]
                sessions[kind] = tf.Session(), saver, values
                sessions[kind][0].run(tf.global_variables_initializer())
        session, saver, values = sessions[kind]
        with session.graph.as_default():
            saver.restore(session, path)
        return session.run(values)

    yield restore
    for session, *_ in sessions.values():
        session.close()


@pytest.mark.parametrize(("kind", "workers", "killed", "point"), _CASES)
def test_the_last_good_checkpoint_restores(kind, workers, killed, point, held, tmp_path):
    outcomes = call_workers(worker.work, workers, str(tmp_path), kind, point, killed, timeout_s=120, check=False)
    passed = worker.POINTS[kind][point]
    assert outcomes[killed].exit_code == -passed.signal, outcomes[killed]
    if passed.signal == signal.SIGXFSZ:
        # The unfinished file has the bytes that were written until then.
        bytes_ = worker.SLICE_BYTES if point == "in a slice" else worker.TEXT_BYTES
        assert bytes_ in [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    for other in set(range(workers)) - {killed}:
        assert outcomes[other].exit_code == 1 and f"rank {killed}" in outcomes[other].error, outcomes[other]
    saved = worker.SAVES[kind]
    step_of = _complete(tmp_path)
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert step_of[latest] == saved + passed.announced, step_of
    for path, step in step_of.items():
        _check(held(kind, path), step, workers, path)


def _complete(folder):
    """Returns the checkpoints of a folder with an index, and the step of each with the increments that build on it."""
    steps = {str(index.with_suffix("")): int(index.stem.rpartition("-")[2]) for index in folder.glob("*.index")}
    chain = folder / ".incremental_checkpoint" / "chain.json"
    if chain.exists():
        chain = json.loads(chain.read_text())
        if chain["increments"]:
            steps[str(folder / chain["base"])] = int(chain["increments"][-1].rpartition("-")[2])
    return steps


def _check(held, step, workers, where):
    keys, rows, versions, frequencies, slots, static, dense = held
    assert keys.tolist() == list(range(worker.KEYS)), where
    for values, expected in ((rows, step), (slots, 1), (frequencies, step * workers), (static, step), (dense, step)):
        np.testing.assert_array_equal(values, expected, err_msg=where)
    assert len(set(versions.tolist())) == 1, where
