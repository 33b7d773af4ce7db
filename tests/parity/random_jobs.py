"""Runs random programs (`random_programs.py`) in jobs, compares them with plain TensorFlow, and makes failures small.

One job runs many programs, one graph after another. A program that fails ends its job, because the workers may then
stand at different collectives; another job runs the programs behind it.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.testing import call_workers
from tests.parity import random_programs
from tests.parity.random_programs import Program, Tower

RTOL, ATOL = 2e-4, 2e-5
plain = functools.cache(random_programs.plain)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What one worker made of a program: the final values, or the error."""

    values: dict[str, np.ndarray] | None
    error: str = ""


def _work(programs: Sequence[Program], folder: str) -> None:
    """Runs programs as a worker and writes a file for each; ends at the first failure."""
    import hybridbackend.tensorflow as hb

    for number, program in enumerate(programs):
        try:
            result = Trained(random_programs.trained(program))
        except Exception:
            result = Trained(None, traceback.format_exc())
        Path(f"{folder}/{number}.{hb.context.rank}").write_bytes(pickle.dumps(result))
        if result.error and hb.context.world_size > 1:
            return


def run(programs: Sequence[Program], workers: int, program_s: float = 10.0) -> list[list[Trained]]:
    """Returns for each program what each worker of a job made of it.

    Args:
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


def difference(program: Program, results: Sequence[Trained]) -> str:
    """Returns what the workers' results have wrong, or ''."""
    errors = [f"rank {rank}: {_last_lines(r.error)}" for rank, r in enumerate(results) if r.error]
    if errors:
        return "\n".join(errors)
    wanted = plain(program, len(results))
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
    lines = error.strip().splitlines()
    starts = [i for i, line in enumerate(lines) if line and not line.startswith((" ", "Traceback"))]
    return "\n".join(lines[starts[-1] if starts else 0 :])[:1500]


def smaller(program: Program) -> Iterator[Program]:
    """Yields programs that are simpler in one respect."""
    for i in range(len(program.towers)):
        if len(program.towers) > 1:
            yield _without_unused(dataclasses.replace(program, towers=_without(program.towers, i)))
    for field in ("gradients", "loss", "shares", "optimizer", "seed"):
        default = getattr(Program(), field)
        if getattr(program, field) != default:
            yield dataclasses.replace(program, **{field: default})
    if program.steps > 1:
        yield dataclasses.replace(program, steps=1)
    for i, tower in enumerate(program.towers):
        for simpler in _smaller_towers(tower):
            yield _without_unused(dataclasses.replace(program, towers=_with(program.towers, i, simpler)))
    for i, table in enumerate(program.tables):
        for field, value in (("placement", "rows"), ("kind", "static"), ("rows", 5), ("dim", 1)):
            if getattr(table, field) != value and not (field == "dim" and len(program.tables) > 1):
                simpler = dataclasses.replace(table, **{field: value})
                yield dataclasses.replace(program, tables=_with(program.tables, i, simpler))


def _smaller_towers(tower: Tower) -> Iterator[Tower]:
    if tower.join:
        for lookup in tower.lookups:
            yield dataclasses.replace(tower, lookups=(lookup,), join="", axis=0, then="", then_axis=0)
    if tower.then:
        yield dataclasses.replace(tower, then="", then_axis=0)
    for j, lookup in enumerate(tower.lookups):
        changes: list[dict[str, Any]] = [{"weighted": False}, {"combiner": "sum"}, {"ids": "int64"}]
        if not tower.join and not tower.then:
            changes += [{"form": "rows", "rank": 1, "constant": False, "weighted": False, "combiner": "sum"}]
        changes += [{"form": lookup.form.removeprefix("safe ")}]
        for change in changes:
            simpler = dataclasses.replace(lookup, **change)
            if simpler != lookup:
                yield dataclasses.replace(tower, lookups=_with(tower.lookups, j, simpler))


def _with(of: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*of[:place], value, *of[place + 1 :])


def _without(of: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*of[:place], *of[place + 1 :])


def _without_unused(program: Program) -> Program:
    """Returns a program without the tables in which no lookup is."""
    used = sorted({lookup.table for tower in program.towers for lookup in tower.lookups})
    towers = tuple(
        dataclasses.replace(
            tower,
            lookups=tuple(dataclasses.replace(one, table=used.index(one.table)) for one in tower.lookups),
        )
        for tower in program.towers
    )
    return dataclasses.replace(program, tables=tuple(program.tables[i] for i in used), towers=towers)


def smallest(program: Program, workers: int, seconds: float = 60.0) -> tuple[Program, str]:
    """Returns a simpler program that fails as well, and its difference; it stops looking after some time."""
    end = time.monotonic() + seconds
    best, wrong = program, ""
    while time.monotonic() < end:
        tried = list(dict.fromkeys(one for one in smaller(best) if random_programs.is_promised(one)))
        # The order is that of `smaller`: the first ones leave out most.
        for one, results in zip(tried, run(tried, workers), strict=True):
            if found := difference(one, results):
                best, wrong = one, found
                break
        else:
            break
    return best, wrong
