"""Tests that work fails on all ranks if it fails on one, and of the exchanges of numpy arrays."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep._src.compat.sok import job, together
from lockstep._src.compat.sok.files import DumpFileError
from lockstep.testing import reported_by_case, run_cases


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")


def test_one_process_raises_its_own_error_and_skips_work_after_it(alone):
    attempt, done = together.Attempt("work"), []
    error = DumpFileError("/d/t-key", "2 keys", "3")

    def fail():
        raise error

    assert attempt.do(len, "abc") == 3
    assert attempt.do(fail) is None
    assert attempt.do(done.append, 1) is None and not done
    with pytest.raises(DumpFileError) as caught:
        attempt.settle()
    assert caught.value is error
    attempt.settle()
    assert attempt.on_all(len, "ab") == 2


def test_one_process_exchanges_with_itself(alone):
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    np.testing.assert_array_equal(together.gather_arrays(array), array)
    assert together.gather_counts(np.int64(4)) == [4]
    with together.GatherToChief() as exchange:
        np.testing.assert_array_equal(exchange.gather(array), array)


def test_errors_that_stop_a_program_are_not_held_back(alone):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together.Attempt("work").do(interrupt)


# Functions that run on workers.


def _run_all():
    job.set_comm_tool("horovod")
    run_cases(CASES, lambda name: together.gather_counts(0))


def fails_on(failing, make):
    """Returns the error that this rank raises if the work of the ranks `failing` raises `make()`."""
    attempt = together.Attempt("the work")

    def work():
        if job.rank() in failing:
            raise make()
        return job.rank()

    try:
        assert attempt.on_all(work) == job.rank() and not failing
    except Exception as error:
        return error
    return None


def error_of_one_rank_is_raised_on_all():
    for make, raised in (
        (lambda: DumpFileError("/d/t-key", "2 keys", "3"), ValueError),
        (lambda: FileNotFoundError(2, "gone"), FileNotFoundError),
        (lambda: PermissionError(13, "not for you"), OSError),
        (lambda: TypeError("what is this"), TypeError),
        (lambda: ZeroDivisionError("by 0"), RuntimeError),
    ):
        error = fails_on([1], make)
        if job.rank() == 1:
            assert type(error) is type(make()), error
            continue
        assert type(error) is raised, error
        assert str(error) == f"the work: rank 1 failed: {type(make()).__name__}: {make()}"


def error_of_the_lowest_rank_is_told_if_several_fail():
    error = fails_on([1, 2], lambda: ValueError(f"of rank {job.rank()}"))
    wanted = "the work: rank 1 failed: ValueError: of rank 1" if job.rank() == 0 else f"of rank {job.rank()}"
    assert str(error) == wanted


def work_that_succeeds_returns_its_result():
    assert fails_on([], ValueError) is None


def different_values_are_the_same_error_on_all_ranks():
    together.check_same("it", ["same", 1])
    with pytest.raises(ValueError, match=r"^the list: rank 2 got \[2\], wanted \[0\], as on rank 0$"):
        together.check_same("the list", [job.rank() // 2 * 2])


def arrays_are_gathered_on_all_ranks_in_their_order():
    for dtype in (np.int32, np.uint64, np.float16, np.float64):
        mine = np.full([job.rank() * 2, 3], job.rank(), dtype)
        gathered = together.gather_arrays(mine)
        np.testing.assert_array_equal(gathered, np.repeat([1, 2], [2, 4])[:, None] * np.ones(3))
        assert gathered.dtype == dtype
    keys = np.arange(job.rank() + 1) + 10 * job.rank()
    np.testing.assert_array_equal(together.gather_arrays(keys), [0, 10, 11, 20, 21, 22])
    assert together.gather_arrays(np.empty([0, 4], np.float32)).shape == (0, 4)
    assert together.gather_counts(job.rank() * 5) == [0, 5, 10]


def records_are_gathered_on_rank_0_round_by_round():
    dtype = np.dtype([("key", np.int64), ("row", np.float16, (3,))])
    with together.GatherToChief() as exchange:
        for length in (2, 0, 1):
            mine = np.zeros(length * job.rank(), dtype)
            mine["key"], mine["row"] = job.rank(), length
            gathered = exchange.gather(mine)
            assert gathered.dtype == dtype
            if job.rank():
                assert not len(gathered)
                continue
            np.testing.assert_array_equal(gathered["key"], np.repeat([1, 2], [length, 2 * length]))
            assert gathered["row"].shape == (3 * length, 3) and (gathered["row"] == length).all()
        np.testing.assert_array_equal(exchange.gather(np.arange(2.0)), [0, 1] * 3 if job.rank() == 0 else [])


CASES = [
    error_of_one_rank_is_raised_on_all,
    error_of_the_lowest_rank_is_told_if_several_fail,
    work_that_succeeds_returns_its_result,
    different_values_are_the_same_error_on_all_ranks,
    arrays_are_gathered_on_all_ranks_in_their_order,
    records_are_gathered_on_rank_0_round_by_round,
]


test_three_ranks_fail_together_and_exchange_arrays = reported_by_case(_run_all, CASES, 3, timeout_s=60)
