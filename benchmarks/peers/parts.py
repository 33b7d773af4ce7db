"""Comparisons of single parts, by the benchmarks of each: dynamic tables, collectives, and Parquet files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import horovod_api
import jobs
from figures import Figures
from turn import Turn, TurnError
from workloads import DATA, ROOT

DEADLINE_S = 240
ROWS = 1_000_000  # of dynamic tables
READERS = {"lockstep": "Lockstep", "pyarrow": "pyarrow, outside of TensorFlow", "tf.data": "pyarrow in tf.data"}
TABLES = {"dynamic": "Lockstep", "variable": "`tf.Variable`, no keys but row numbers", "tfra": "TFRA"}
COLLECTIVES = (
    "allreduce 4 B",
    "allreduce 1 MiB",
    "allreduce 64 MiB",
    "26 alltoalls of 64 KiB",
    "alltoall 64 KiB, other splits",
)


def dynamic_tables(quick: bool) -> list[Turn]:
    """Returns turns that measure training steps and lookups of tables whose keys are any int64."""

    def run_with(dim: int) -> Callable[[Figures, int], str]:
        def run(figures: Figures, round_number: int) -> str:
            options = ["--rows", str(ROWS // 10 if quick else ROWS), "--dims", str(dim)]
            return _noted(
                figures,
                _measured("embedding.py", [*options, "--seconds", "0.3" if quick else "1.5"]),
                lambda line: (
                    f"{'training' if line['what'] == 'train' else 'lookup'}, {line['law']}, width {line['dim']}"
                ),
                "dynamic-tables",
                "million keys/s",
                TABLES,
            )

        return run

    missing = jobs.missing("tfra")
    note = [Turn("dynamic tables, TFRA", missing, lambda figures, number: "")] if missing else []
    return note + [Turn(f"dynamic tables, width {dim}", "", run_with(dim)) for dim in (16, 64)]


def parquet(quick: bool) -> list[Turn]:
    """Returns a turn that reads Parquet files."""
    DATA.mkdir(parents=True, exist_ok=True)

    def run(figures: Figures, round_number: int) -> str:
        options = ["--rows", "100000" if quick else "500000", "--rounds", "1", "--codecs", "zstd"]
        options += ["--folder", str(DATA)]
        return _noted(
            figures,
            _measured("parquet.py", options),
            lambda line: f"{line['file']}, batches of {line['batch']}",
            "parquet",
            "million rows/s",
            READERS,
        )

    return [Turn("Parquet", "", run)]


def collectives(quick: bool) -> list[Turn]:
    """Returns turns that measure Horovod's API, by Lockstep and by Horovod."""

    def run_with(title: str, python: str) -> Callable[[Figures, int], str]:
        def run(figures: Figures, round_number: int) -> str:
            try:
                times = horovod_api.measure(python, 2, 0.3 if quick else 1.0)
            except (SystemExit, subprocess.TimeoutExpired) as error:
                raise TurnError(str(error)) from error
            said = []
            for row in COLLECTIVES:
                milliseconds = max(times[row][0] - times[row][1], 1e-9) * 1e3
                comparison = figures.comparison(f"collectives: {row}", "collectives", row, "ms", less_is_better=True)
                comparison.of(title).values.append(milliseconds)
                said.append(f"{row} {milliseconds:.3f} ms")
            return "; ".join(said)

        return run

    horovod = str(jobs.PEERS / "horovod/bin/python")
    return [
        Turn("collectives, Lockstep", "", run_with("Lockstep", sys.executable)),
        Turn("collectives, Horovod", jobs.missing("horovod"), run_with("Horovod", horovod)),
    ]


TURNS = {"dynamic-tables": dynamic_tables, "collectives": collectives, "parquet": parquet}


def _measured(script: str, options: list[str]) -> list[dict]:
    """Runs a benchmark of this repository. Returns what it writes as JSON."""
    with tempfile.TemporaryDirectory(prefix="lockstep_peers_") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, str(ROOT / "benchmarks" / script), *options, "--json", str(out)]
        variables = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        try:
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise TurnError(f"no figures within {DEADLINE_S} s") from error
        if done.returncode != 0:
            raise TurnError(f"exit code {done.returncode}\n{done.stderr[-3000:]}")
        return json.loads(out.read_text())


def _noted(
    figures: Figures,
    measured: list[dict],
    title_of: Callable[[dict], str],
    group: str,
    unit: str,
    systems: dict[str, str],
) -> str:
    """Notes the rates of each line of a benchmark, and returns them as text."""
    said = []
    for line in measured:
        title = title_of(line)
        comparison = figures.comparison(f"{group}: {title}", group, title, unit)
        for name, rate in line["rates"].items():
            comparison.of(systems[name]).values.append(rate)
        said.append(f"{title}: " + ", ".join(f"{name} {rate:.1f}" for name, rate in line["rates"].items()))
    return "; ".join(said)
