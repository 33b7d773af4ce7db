"""Programs of HybridBackend's second generation, run as their users run them, against numpy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.scripts.documents import Training, halves, printed, run_program, served, write_rows

pytestmark = pytest.mark.oldest

PROGRAM = Path(__file__).with_name("hybridbackend_generation_2.py")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Returns the folder that the program wrote into, training and held-out rows, and each worker's output."""
    folder = tmp_path_factory.mktemp("hybridbackend_generation_2")
    rows, held_out = write_rows(folder / "train.parquet", 0, 1600), write_rows(folder / "eval.parquet", 1, 600)
    arguments = [str(PROGRAM), str(folder / "train.parquet"), str(folder / "eval.parquet"), str(folder)]
    return folder, rows, held_out, run_program(arguments, folder, variables={"HB_GRAD_NBUCKETS": "3"})


def test_workers_know_their_place_and_the_options(job):
    for rank, output in enumerate(job[3]):
        assert f"{rank}-of-2" in output.splitlines()
        assert (printed(output, "1.3", "before"), printed(output, "1.3", "after")) == ([3], [2])


# Promise (hybridbackend.md): the mean, as for dense variables; the sum with `embedding_gradient='sum'` (HybridBackend,
# a wrong result: gradients of sharded tables are summed).
@pytest.mark.parametrize("example", ["2.2", "2.3", "2.4", "sharding 2.2", "evaluation 2.3"])
def test_each_spelling_trains_as_one_process_on_the_rows_of_both_workers(job, example):
    losses = np.transpose([printed(output, example) for output in job[3]])
    np.testing.assert_allclose(losses, Training(halves(job[1])).losses, rtol=1e-4)


# Promise (hybridbackend.md): it stays unchanged (HybridBackend: the caller's list of hooks grows).
def test_the_session_evaluates_and_leaves_the_callers_hooks_alone(job):
    for output in job[3]:
        assert printed(output, "evaluation 2.3", "hooks") == [2]
        values = printed(output, "evaluation 2.3", "evaluated")
        assert len(values) == 1 and values[0] > 0.9


def test_the_export_serves_what_was_trained(job):
    _, rows, held_out, outputs = job
    exported = re.search(r"^2\.4 exported (.+)$", outputs[0], re.M).group(1)
    scores = served(exported, held_out["price"][:, np.newaxis], held_out["item"])
    np.testing.assert_allclose(scores, Training(halves(rows)).predict(held_out), rtol=1e-4)
