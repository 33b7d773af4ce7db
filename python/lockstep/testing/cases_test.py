"""Tests of the helpers that run several cases in one job."""

import functools
import os

import pytest

from lockstep.testing import WorkerError, call_workers, reported_by_case, run_cases
from lockstep.testing.cases import check_case

pytestmark = [pytest.mark.workers, pytest.mark.newest_only]  # no TensorFlow in it


def first():
    print("the first one ran")


def fails_on_rank_1():
    if os.environ["LOCKSTEP_RANK"] == "1":
        raise KeyError("a word to find")


def dies():
    os._exit(3)


def last():
    pass


def on_worker(cases, at_the_end=lambda: None):
    run_cases(cases, lambda name: print("barrier of", name))
    at_the_end()


CASES = [first, last]
test_each_case_is_a_test = reported_by_case(functools.partial(on_worker, CASES), CASES, 2)


@pytest.mark.parametrize("failing", [fails_on_rank_1, dies])
def test_a_case_that_fails_is_named_and_those_after_it_did_not_run(failing):
    cases = [first, failing, last]
    names = [case.__name__ for case in cases]
    outcomes = call_workers(on_worker, 2, cases, timeout_s=30, check=False)
    check_case("first", names, outcomes, 30)
    with pytest.raises(WorkerError, match="a word to find" if failing is fails_on_rank_1 else "exit code 3"):
        check_case(failing.__name__, names, outcomes, 30)
    with pytest.raises(WorkerError, match=f"^did not run, because case {failing.__name__} failed$"):
        check_case("last", names, outcomes, 30)


def test_a_job_that_fails_after_its_cases_fails_the_last_one():
    outcomes = call_workers(on_worker, 2, CASES, dies, timeout_s=30, check=False)
    check_case("first", ["first", "last"], outcomes, 30)
    with pytest.raises(WorkerError, match="exit code 3"):
        check_case("last", ["first", "last"], outcomes, 30)
