"""A job on two hosts that loses a worker, or a whole host, restarts and ends as if nothing had happened.

The results are equal bit for bit, with the same batches, as on one host (`tests/multiprocess/faults/restart_test.py`).
"""

import contextlib
import random
import sys
from pathlib import Path

import pytest

from lockstep.testing.emulated_cluster import Cluster, wait_until, why_not
from tests.hosts.launched import Launched, launched, ssh_on
from tests.soak import compare, jobs, program

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.long]

_STEPS, _WORKERS = 200, 4
_DEADLINE_S = 240


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """Returns a folder with `data`, and the run `undisturbed`."""
    folder = tmp_path_factory.mktemp("restarts")
    program.make_data(folder / "data")
    with Cluster(2) as hosts, ssh_on(hosts), _trains(hosts, folder, "undisturbed") as job:
        assert job.await_end(_DEADLINE_S) == 0, job.output()
    return folder


def _trains(hosts, folder: Path, name: str, *flags: object, options: tuple = ()) -> contextlib.AbstractContextManager:
    words = [sys.executable, "-m", "tests.soak.program", folder / name, "--data", folder / "data", "--steps", _STEPS]
    return launched(hosts, ["--hosts", "a:2,b:2", *options], [*words, *flags], folder / f"{name}-launcher")


def _check_equal(job: Launched, folder: Path, name: str) -> None:
    assert job.await_end(_DEADLINE_S) == 0, job.output()
    job.await_no_processes(5)
    got, wanted = (compare.checkpoint(folder / run / "checkpoints", _STEPS) for run in (name, "undisturbed"))
    assert compare.differences(got, wanted) == []
    # It repeated the steps that had not been saved, with the same results.
    assert compare.check_batches(folder / name, folder / "undisturbed", _WORKERS) > 0


@pytest.mark.parametrize(("killed", "seed"), [("3", 7), ("all", 8)])
def test_a_job_on_two_hosts_whose_workers_are_killed_begins_anew_and_ends_as_if_nothing_had_happened(
    undisturbed, killed, seed
):
    step, name = random.Random(seed).randrange(25, _STEPS - 1), f"killed-{killed}"
    die = ("--die", killed, step)
    with (
        Cluster(2) as hosts,
        ssh_on(hosts),
        _trains(hosts, undisturbed, name, *die, options=("--restarts", 1)) as job,
    ):
        _check_equal(job, undisturbed, name)
        assert "restart 1 of 1" in job.output()


def test_a_host_that_is_lost_and_comes_back_takes_part_again_as_if_nothing_had_happened(undisturbed):
    step = 20 * random.Random(9).randrange(2, 6) + 8  # between two checkpoints
    with contextlib.ExitStack() as services, Cluster(2) as hosts:
        services.enter_context(ssh_on(hosts))
        # More than one, because attempts fail until the host is back.
        with _trains(hosts, undisturbed, "lost", options=("--restarts", 5)) as job:
            run = undisturbed / "lost"
            wait_until(lambda: jobs.last_step(run) >= step or job.process.poll() is not None, _DEADLINE_S, "a step")
            assert job.process.poll() is None, job.output()
            hosts[1].kill()
            assert jobs.last_step(run) < _STEPS
            services.enter_context(ssh_on(hosts[1:]))
            _check_equal(job, undisturbed, "lost")
            assert "lost with host b (ranks 2, 3)" in job.output()
