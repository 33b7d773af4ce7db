"""Random programs train on 1, 2 and 3 workers as in plain TensorFlow.

Each number is a program (`random_programs.py`) and a test of its own. The programs are the same in each run. One of them:
`pytest --long 'tests/parity/random_programs_test.py::test_a_program_trains_as_in_plain_tensorflow[17]'`.
A failure prints the program, and a smaller one that fails as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.parity import random_jobs, random_programs

# The programs of `make test` take two minutes on two cores; those of `make test-long` take hours.
SHORT, LONG, OF_A_JOB = 40, 2000, 40
SHRINKING_S = 120.0


def workers_of(number: int) -> int:
    return (2, 3, 2, 1)[number % 4]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Callable[[int], list[random_jobs.Trained]]:
    """Returns what the workers make of a program; one job runs many of the selected programs."""
    test = test_a_program_trains_as_in_plain_tensorflow
    numbers = [item.callspec.params["number"] for item in request.session.items if item.function is test]
    known: dict[int, list[random_jobs.Trained]] = {}

    def result(number: int) -> list[random_jobs.Trained]:
        if number not in known:
            workers = workers_of(number)
            later = [n for n in numbers if n >= number and workers_of(n) == workers][:OF_A_JOB]
            jobs = random_jobs.run([random_programs.drawn(n) for n in later], workers)
            known.update(zip(later, jobs, strict=True))
        return known[number]

    return result


class _Budget:
    """The time that is left to make programs smaller, of all tests together."""

    left_s = SHRINKING_S

    def smallest(self, program: random_programs.Program, workers: int) -> tuple[random_programs.Program, str]:
        begin = time.monotonic()
        try:
            return random_jobs.smallest(program, workers, self.left_s)
        finally:
            self.left_s -= time.monotonic() - begin


@pytest.fixture(scope="module")
def budget() -> _Budget:
    return _Budget()


@pytest.mark.parametrize("number", [n if n < SHORT else pytest.param(n, marks=pytest.mark.long) for n in range(LONG)])
def test_a_program_trains_as_in_plain_tensorflow(number, results, budget):
    program, workers = random_programs.drawn(number), workers_of(number)
    if wrong := random_jobs.difference(program, results(number)):
        text = f"program {number} on {workers} worker(s):\n{wrong}\n{program}"
        small, wrong_there = budget.smallest(program, workers)
        if small != program:
            text += f"\n\nA smaller program:\n{wrong_there}\n{small}"
        pytest.fail(text, pytrace=False)
