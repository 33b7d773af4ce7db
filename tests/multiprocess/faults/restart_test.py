"""A killed and restarted job ends like an undisturbed one: bit for bit, with the same batches."""

import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.soak import compare, jobs, program

STEPS = 130
DEADLINE_S = 500
SAVES_POSITION = {"LOCKSTEP_SAVE_DATA_POSITION": "1"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """Returns a folder with `data`, and the run `undisturbed`."""
    folder = tmp_path_factory.mktemp("restarts")
    program.make_data(folder / "data")
    assert _run(folder, "undisturbed", launcher=("-n", 2)) == 0
    return folder


def _run(folder: Path, name: str, *flags: object, launcher: tuple, variables: dict | None = None) -> int:
    """Trains in `folder`/`name` and returns the launcher's exit code. All of its processes have ended then."""
    log = folder / f"{name}.log"
    words = jobs.command(folder / name, folder / "data", "--steps", STEPS, *flags, launcher=launcher)
    with jobs.started(words, str(folder / name), log, variables) as process:
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job still runs after {DEADLINE_S} s:\n{log.read_text()}")
        assert not jobs.left_over(str(folder / name))
    return code


def _check_equal(folder: Path, name: str) -> None:
    got, wanted = (compare.checkpoint(folder / run / "checkpoints", STEPS) for run in (name, "undisturbed"))
    assert compare.differences(got, wanted) == []
    # It repeated the steps that had not been saved, with the same results.
    assert compare.check_batches(folder / name, folder / "undisturbed", 2) > 0


@pytest.mark.parametrize(
    ("killed", "seed", "flags"),
    [
        pytest.param("1", 4, ("--every", 90, "--increments", 7), marks=pytest.mark.oldest),
        *(pytest.param(*case, marks=pytest.mark.long) for case in [("0", 1, ()), ("1", 2, ()), ("all", 3, ())]),
    ],
)
def test_a_killed_job_begins_anew_by_itself_and_ends_as_if_nothing_had_happened(undisturbed, killed, seed, flags):
    step = random.Random(seed).randrange(25, STEPS - 1)
    name = f"killed-{killed}-{seed}"
    launcher = ("-n", 2, "--restarts", 1)
    assert _run(undisturbed, name, *flags, "--die", killed, step, launcher=launcher) == 0
    assert "restart 1 of 1" in (undisturbed / f"{name}.log").read_text()
    _check_equal(undisturbed, name)


@pytest.mark.parametrize(
    ("killed", "seed", "launcher", "variables", "code"),
    [
        ("launcher", 5, ("-n", 2, "--restarts", 3), {}, -signal.SIGKILL),
        ("0", 6, ("-n", 2), SAVES_POSITION, 128 + signal.SIGKILL),
    ],
)
@pytest.mark.long
def test_a_job_that_is_started_again_by_hand_ends_as_if_nothing_had_happened(
    undisturbed, killed, seed, launcher, variables, code
):
    step = random.Random(seed).randrange(25, STEPS - 1)
    name = f"by-hand-{seed}"
    how = {"launcher": launcher, "variables": variables}
    assert _run(undisturbed, name, "--die", killed, step, **how) == code
    assert _run(undisturbed, name, **how) == 0
    _check_equal(undisturbed, name)
