"""Random programs train on 1, 2 and 3 workers as in plain TensorFlow.

Each number is a program and a test of its own, for programs of TensorFlow 1 (`random_programs.py`) and of Keras
(`random_keras.py`). The programs are the same in each run. For one:
`pytest --long 'tests/parity/random_programs_test.py::test_a_program_trains_as_in_plain_tensorflow[graph-17]'`.
A failure prints the program, and a smaller one that fails as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity import random_jobs

# `make test` runs SHORT programs, in a minute on two cores. `make test-long` runs LONG, in hours.
SHORT, LONG, OF_A_JOB = {"graph": 8, "keras": 4}, 2000, 30
SHRINKING_S = 60.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives the test its programs. The long ones are not even collected without --long: each costs milliseconds."""
    if "number" in metafunc.fixturenames:
        ends = {family: LONG if metafunc.config.getoption("--long") else short for family, short in SHORT.items()}
        cases = [
            pytest.param(family, number, marks=[pytest.mark.long] if number >= SHORT[family] else [])
            for family, end in ends.items()
            for number in range(end)
        ]
        metafunc.parametrize(("family", "number"), cases)


def workers_of(number: int) -> int:
    return (2, 3, 2, 1)[number % 4]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Callable[[str, int], list[random_jobs.Trained]]:
    """Returns what the workers make of a program; one job runs many of the selected programs."""
    test = test_a_program_trains_as_in_plain_tensorflow
    selected = [item.callspec.params for item in request.session.items if item.function is test]
    known: dict[tuple[str, int], list[random_jobs.Trained]] = {}

    def result(family: str, number: int) -> list[random_jobs.Trained]:
        if (family, number) not in known:
            numbers = [case["number"] for case in selected if case["family"] == family]
            workers = workers_of(number)
            alike = [n for n in numbers if n >= number and workers_of(n) == workers][:OF_A_JOB]
            jobs = random_jobs.run(family, [random_jobs.drawn(family, n) for n in alike], workers)
            known.update(zip([(family, n) for n in alike], jobs, strict=True))
        return known[family, number]

    return result


class _Budget:
    """The time that is left to make programs smaller, of all tests together."""

    left_s = SHRINKING_S

    def smallest(self, family: str, program: Any, workers: int) -> tuple[Any, str]:
        begin = time.monotonic()
        try:
            return random_jobs.smallest(family, program, workers, self.left_s)
        finally:
            self.left_s -= time.monotonic() - begin


@pytest.fixture(scope="module")
def budget() -> _Budget:
    return _Budget()


# Promise (promises.md): random programs of TensorFlow 1 on 1, 2 and 3 workers train as in plain TensorFlow, with
# lookups of all kinds, placements, clipping, six optimizers, and unequal and empty batches.
# Promise (promises.md): random models of Keras train as in plain Keras: clipping, accumulation, loss scales,
# regularizers, sample weights, custom loops.
def test_a_program_trains_as_in_plain_tensorflow(family, number, results, budget):
    program, workers = random_jobs.drawn(family, number), workers_of(number)
    if wrong := random_jobs.difference(family, program, results(family, number)):
        text = f"program {number} on {workers} worker(s):\n{wrong}\n{program}"
        small, wrong_there = budget.smallest(family, program, workers)
        if small != program:
            text += f"\n\nA smaller program:\n{wrong_there}\n{small}"
        pytest.fail(text, pytrace=False)
