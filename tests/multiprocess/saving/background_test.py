"""Tests of checkpoints that are written while a session trains."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.saving.chain import Chain
from lockstep.testing import WorkerError, call_workers
from lockstep.testing.launching import finish, launchers
from tests.multiprocess.saving import background_worker as worker

launch = pytest.fixture(launchers)
_STEPS, _EVERY = 5 * worker.EVERY, worker.EVERY


# Promise (checkpoints.md): saves beside training write the weights and checkpoints of a job that waits, bit for bit.
@pytest.mark.oldest
@pytest.mark.parametrize("workers", [1, 2])
def test_checkpoints_and_weights_are_those_of_a_run_that_waits(tmp_path, workers):
    folders = [str(tmp_path / name) for name in ("waits", "goes_on")]
    alongside = [
        call_workers(worker.train, workers, folder, _STEPS, background, timeout_s=120)
        for folder, background in zip(folders, (False, True), strict=True)
    ]
    assert max(alongside[0]) == 0 and min(alongside[1]) > 0
    for step in range(0, _STEPS + 1, _EVERY):
        # The first step of a session saves as well.
        waited, went_on = (worker.contents(f"{folder}/model.ckpt-{step}") for folder in folders)
        assert waited.keys() == went_on.keys()
        for name, values in waited.items():
            np.testing.assert_array_equal(went_on[name], values, err_msg=f"{name} at step {step}")
    assert tf.train.latest_checkpoint(folders[1]) == f"{folders[1]}/model.ckpt-{_STEPS}"
    assert not list((tmp_path / "goes_on").glob("*_temp*"))


# Promise (checkpoints.md): an update copies no table while a save runs; a resumed session allocates the memory of its
# saves when it starts.
@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_session_takes_the_memory_of_its_saves_at_its_begin(tmp_path, workers):
    once, resumed = str(tmp_path / "once"), str(tmp_path / "resumed")
    call_workers(worker.train, workers, once, 2 * _EVERY, timeout_s=120)
    assert call_workers(worker.train_and_resume, workers, resumed, timeout_s=120) == [(0, 1)] * workers
    expected, found = (worker.contents(f"{folder}/model.ckpt-{2 * _EVERY}") for folder in (once, resumed))
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


# Promise (checkpoints.md): other saves, restores, the end of a session and of a program wait for a save.
def test_the_end_of_the_program_waits_for_a_save(tmp_path, launch):
    program = f"from tests.multiprocess.saving import background_worker as w\nw.end_beside_a_save({str(tmp_path)!r})"
    variables = {"PYTHONPATH": str(Path(__file__).parents[3])}
    code, stdout, stderr = finish(launch("-n", "2", worker=program, variables=variables), 120)
    assert code == 0, "\n".join(stderr)
    assert sum("ends beside a save: True" in line for line in stdout) == 2, stdout
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / f"model.ckpt-{_EVERY}")
    assert worker.contents(tmp_path / f"model.ckpt-{_EVERY}")["static"].shape == (worker.ROWS, worker.DIM)


# Promise (checkpoints.md): increments beside training equal the increments of a job that waits.
@pytest.mark.parametrize("workers", [1, 2])
def test_increments_beside_training_are_those_of_a_run_that_waits(tmp_path, workers):
    folders = [tmp_path / name for name in ("waits", "goes_on")]
    alongside = [
        call_workers(worker.train, workers, str(folder), _STEPS, background, (), True, timeout_s=120)
        for folder, background in zip(folders, (False, True), strict=True)
    ]
    assert max(alongside[0]) == 0 and min(alongside[1]) > 0
    waited, went_on = (Chain.read(str(folder)) for folder in folders)
    assert waited.base == went_on.base and len(waited.increments) >= 4
    assert waited.increments == went_on.increments
    for prefixes in zip(*(waited.prefixes(str(folder)) for folder in folders), strict=True):
        expected, found = map(worker.changes, prefixes)
        assert "static-changed-ids" in expected and expected.keys() == found.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{name} of {prefixes[1]}")


# Each rank passes "part written" more often than that.
_MOMENTS = [
    (0, "shards: part written", 99),
    (1, "shards: part written", 20),
    (1, "tables: part written", 2),
    (1, "save: file written", 1),
    *((0, point, 1) for point in ("save: all written", "commit: synced", "commit: file renamed")),
]
_MORE_MOMENTS = [
    *((rank, "shards: part written", passes) for rank in (0, 1) for passes in (1, 2, 60)),
    (0, "shards: part written", 20),
    (1, "shards: part written", 99),
    *((0, "tables: part written", passes) for passes in (1, 2)),
    (1, "tables: part written", 1),
    (0, "save: file written", 1),
    (0, "commit: merged", 1),
]
_COMMITTED = [(0, "commit: place synced", 1), (0, "commit: aside removed", 1)]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("whole"))
    call_workers(worker.train, 2, folder, 2 * _EVERY, timeout_s=120)
    return folder


# Promise (checkpoints.md): a worker that dies at any moment of a save leaves the last complete checkpoint.
@pytest.mark.parametrize(
    ("rank", "point", "passes"),
    [*_MOMENTS, *_COMMITTED, *(pytest.param(*moment, marks=pytest.mark.long) for moment in _MORE_MOMENTS)],
)
def test_a_death_at_any_moment_leaves_the_last_complete_checkpoint(tmp_path, whole_run, rank, point, passes):
    outcomes = call_workers(worker.train_and_die, 2, str(tmp_path), rank, point, passes, timeout_s=120, check=False)
    assert outcomes[rank].exit_code == -signal.SIGKILL, outcomes
    assert outcomes[1 - rank].error and f"rank {rank}" in outcomes[1 - rank].error, outcomes
    committed = (rank, point, passes) in _COMMITTED
    announced = tf.train.latest_checkpoint(tmp_path)
    assert announced == str(tmp_path / f"model.ckpt-{_EVERY}")
    for step in (_EVERY, 2 * _EVERY) if committed else (_EVERY,):
        expected = worker.contents(f"{whole_run}/model.ckpt-{step}")
        for name, values in worker.contents(str(tmp_path / f"model.ckpt-{step}")).items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)
    assert committed or not os.path.exists(tmp_path / f"model.ckpt-{2 * _EVERY}.index")
    # A new job restores it, with another number of workers.
    call_workers(worker.train, 1, str(tmp_path), 2 * _EVERY, timeout_s=120)


# Promise (checkpoints.md): a save that fails is an error of a later step, on all workers.
def test_a_failed_save_is_an_error_of_a_later_step(tmp_path):
    with pytest.raises(WorkerError) as raised:
        call_workers(worker.train_on_a_full_disk, 2, str(tmp_path), timeout_s=120)
    said = str(raised.value)
    assert f"checkpoint {tmp_path}/model.ckpt-{2 * _EVERY} cannot be saved: rank 1: " in said, said
    assert "File too large" in said
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / f"model.ckpt-{_EVERY}")


# Promise (checkpoints.md): other saves, restores, the end of a session and of a program wait for a save.
@pytest.mark.parametrize("workers", [1, 2])
def test_other_saves_and_restores_wait_and_the_end_of_the_session_too(tmp_path, workers):
    for equal, latest in call_workers(worker.save_twice_and_restore, workers, str(tmp_path), timeout_s=120):
        assert equal
        assert latest == f"{tmp_path}/sessions/model.ckpt-4"
