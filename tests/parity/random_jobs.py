"""Draws random programs, runs them in jobs, compares them with plain TensorFlow, and makes failures small.

`FAMILIES` has the kinds of programs. Their descriptions print as Python that makes them again.

One job runs many programs, one graph after another. A program that fails ends its job, because the workers may then
stand at different collectives; another job runs the programs behind it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pickle
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np

from lockstep.testing import call_workers
from tests.parity import random_graphs, random_keras, random_programs

RTOL, ATOL = 2e-4, 2e-5


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of programs.

    Attributes:
      programs: returns the strategy that draws them.
      trained: trains a program as a worker of a job; returns the final values, of tables all rows.
      plain: returns the same of plain TensorFlow, with the rows of a number of workers.
      smaller: yields programs that are simpler in one respect.
      is_promised: returns whether the pages promise that a program trains as in plain TensorFlow.
    """

    programs: Callable[[], Any]
    trained: Callable[[Any], dict[str, np.ndarray]]
    plain: Callable[[Any, int], dict[str, np.ndarray]]
    smaller: Callable[[Any], Iterator[Any]]
    is_promised: Callable[[Any], bool]


FAMILIES = {
    "graph": Family(
        random_programs.programs,
        random_graphs.trained,
        random_graphs.plain,
        random_programs.smaller,
        random_programs.is_promised,
    ),
    "keras": Family(
        random_keras.programs,
        random_keras.trained,
        random_keras.plain,
        random_keras.smaller,
        random_keras.is_promised,
    ),
}


@functools.cache
def drawn(family: str, number: int) -> Any:
    """Returns the program of a number; it depends on nothing else."""
    found: list[Any] = []

    @hypothesis.seed(number)
    @hypothesis.settings(
        max_examples=6,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(FAMILIES[family].programs())
    def draw(program: Any) -> None:
        found.append(program)

    draw()
    return found[-1]  # the first ones of a run are simple


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of one worker: the final values, or the error."""

    values: dict[str, np.ndarray] | None
    error: str = ""


def _work(family: str, programs: Sequence[Any], folder: str) -> None:
    """Runs programs as a worker and writes a file for each; ends at the first failure."""
    import hybridbackend.tensorflow as hb

    for number, program in enumerate(programs):
        try:
            result = Trained(FAMILIES[family].trained(program))
        except Exception:
            result = Trained(None, traceback.format_exc())
        Path(f"{folder}/{number}.{hb.context.rank}").write_bytes(pickle.dumps(result))
        if result.error and hb.context.world_size > 1:
            return


def run(family: str, programs: Sequence[Any], workers: int, program_s: float = 10.0) -> list[list[Trained]]:
    """Returns for each program what each worker of a job made of it.

    Args:
      family: the kind of the programs.
      programs: the programs.
      workers: the number of workers.
      program_s: the seconds that a program may take on a quiet machine.
    """
    results: list[list[Trained]] = []
    while len(results) < len(programs):
        left = programs[len(results) :]
        with tempfile.TemporaryDirectory(prefix="lockstep_programs_") as folder:
            outcomes = call_workers(
                _work,
                workers,
                family,
                left,
                folder,
                timeout_s=30 + program_s * len(left),
                environment={"LOCKSTEP_STALL_TIMEOUT": "60"},
                check=False,
            )
            for number in range(len(left)):
                files = [Path(f"{folder}/{number}.{rank}") for rank in range(workers)]
                of_workers = [
                    pickle.loads(file.read_bytes())
                    if file.exists()
                    else Trained(None, f"the worker ended: {outcome.error or outcome.output[-2000:]}")
                    for file, outcome in zip(files, outcomes, strict=True)
                ]
                results.append(of_workers)
                if workers > 1 and any(result.error for result in of_workers):
                    break
                if not all(file.exists() for file in files):
                    break
    return results


def difference(family: str, program: Any, results: Sequence[Trained]) -> str:
    """Returns what the workers' results have wrong, or ''."""
    errors = [f"rank {rank}: {_last_lines(r.error)}" for rank, r in enumerate(results) if r.error]
    if errors:
        return "\n".join(errors)
    wanted = FAMILIES[family].plain(program, len(results))
    found = []
    for name, value in wanted.items():
        for rank, result in enumerate(results):
            assert result.values is not None
            got = result.values[name]
            if got.tobytes() != results[0].values[name].tobytes():
                found.append(f"{name} differs between ranks 0 and {rank}: {_worst(got, results[0].values[name])}")
            if got.shape != value.shape:
                found.append(f"{name} on rank {rank}: got the shape {got.shape}, wanted {value.shape}")
            elif not np.allclose(got, value, RTOL, ATOL):
                found.append(f"{name} on rank {rank}: {_worst(got, value)}")
    return "\n".join(found)


def _worst(got: np.ndarray, wanted: np.ndarray) -> str:
    """Describes the element that differs most."""
    if got.shape != wanted.shape:
        return f"shapes {got.shape} and {wanted.shape}"
    distance = np.where(np.isfinite(got), np.abs(np.nan_to_num(got) - wanted), np.inf)
    place = np.unravel_index(np.argmax(distance), got.shape)
    return f"at {[int(i) for i in place]} got {got[place]:.6g}, wanted {wanted[place]:.6g}"


def _last_lines(error: str) -> str:
    """Returns an error without its stack."""
    lines = error.strip().splitlines()
    begins = [i for i, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return "\n".join(lines[begins[-1] if begins else -1 :])[:1500]


def smallest(family: str, program: Any, workers: int, seconds: float) -> tuple[Any, str]:
    """Returns a simpler program that fails as well, and its difference; it stops looking after some time."""
    of = FAMILIES[family]
    end = time.monotonic() + seconds
    best, wrong = program, ""
    # `smaller` yields first the programs that leave out most. A job runs a few of them.
    left = filter(of.is_promised, of.smaller(best))
    while time.monotonic() < end and (tried := list(itertools.islice(left, 5))):
        for one, results in zip(tried, run(family, tried, workers), strict=True):
            if found := difference(family, one, results):
                best, wrong = one, found
                left = filter(of.is_promised, of.smaller(best))
                break
    return best, wrong
