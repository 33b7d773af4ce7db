"""One process of a training job: its share of the batches, its clock, and what it reports to the runner through files.

The runner writes `job.json` into a folder of the job (class Job). Each worker writes `ready.RANK` after its warm-up,
waits for `start`, and writes `figures.RANK` after the timed steps. If the job measures the AUC, rank 0 writes `auc`.
Files work with every launcher, whose processes may be children of children.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import reader
from reader import Columns
from schema import EVAL, LABEL, TRAIN, Schema
from workloads import GLOBAL_BATCH, Workload


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, as the runner describes it to the job's processes.

    Attributes:
      folder: the folder of the job's files.
      system: the name of the system.
      workload: what it trains.
      data: the folder of the prepared data.
      measures_auc: whether training continues, and the AUC is measured.
    """

    folder: Path
    system: str
    workload: Workload
    data: str
    measures_auc: bool

    def save(self) -> None:
        """Writes the description for the processes."""
        values = {"system": self.system, "workload": dataclasses.asdict(self.workload)}
        values |= {"data": self.data, "measures_auc": self.measures_auc}
        (self.folder / "job.json").write_text(json.dumps(values))

    @classmethod
    def load(cls, folder: Path) -> Job:
        """Reads the description that `save` wrote."""
        values = json.loads((folder / "job.json").read_text())
        return cls(folder, **{**values, "workload": Workload(**values["workload"])})

    @property
    def schema(self) -> Schema:
        """The schema of the data."""
        return Schema.load(self.data)


@dataclasses.dataclass(frozen=True)
class Program:
    """A system's program for a workload.

    Attributes:
      prepare: makes the input of a step from the columns of a batch, before the clock starts.
      step: trains with such an input and returns the loss.
      score: returns the probabilities [B] of such an input. All ranks call it together, with the same input.
    """

    prepare: Callable[[Columns], Any]
    step: Callable[[Any], float]
    score: Callable[[Any], np.ndarray]


def this_job() -> Job:
    """Returns the job of this process, whose folder is the first argument of the command line."""
    return Job.load(Path(sys.argv[1]))


def place() -> tuple[int, int]:
    """Returns rank and number of the workers, for systems whose launcher is the runner itself."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def shares(data: str | Path, rank: int, size: int) -> Iterator[Columns]:
    """Yields a worker's share of every global batch of the data in a folder, again and again."""
    schema, part = Schema.load(data), GLOBAL_BATCH // size
    while True:
        for batch in reader.batches(data, TRAIN, GLOBAL_BATCH, drop_remainder=True):
            yield rows_of(batch, schema, slice(rank * part, (rank + 1) * part))


def rows_of(batch: Columns, schema: Schema, rows: slice) -> Columns:
    """Returns copies of some rows of a batch, at addresses from which TensorFlow and PyTorch read without a copy."""
    chosen = {}
    for name in schema.columns:
        if name in schema.lists:
            splits = batch[f"{name}/splits"][rows.start : rows.stop + 1]
            chosen[name] = aligned(batch[name][splits[0] : splits[-1]])
            chosen[f"{name}/splits"] = aligned(splits - splits[0])
        else:
            chosen[name] = aligned(batch[name][rows])
    return chosen


def aligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy whose address is a multiple of 64: other arrays are copied in each step that is fed with them."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run(job: Job, rank: int, size: int, program: Program) -> None:
    """Warms up, times the steps from the common start on, and measures the AUC if the job does."""
    workload = job.workload
    batches = (program.prepare(batch) for batch in shares(job.data, rank, size))
    # No more than the data's different batches are in memory.
    kept = list(itertools.islice(batches, min(workload.warm_up + workload.timed, workload.batches)))
    inputs = itertools.cycle(kept)
    for _ in range(workload.warm_up):
        program.step(next(inputs))
    tell(job, f"ready.{rank}", os.getpid())
    await_file(job, "start")
    tell(job, f"figures.{rank}", timed(program, inputs, workload.timed, GLOBAL_BATCH // size))
    if not job.measures_auc:
        return
    done = workload.warm_up + workload.timed
    rest = batches if done == len(kept) else inputs
    for _ in range(workload.auc_steps - done):
        program.step(next(rest))
    labels, scores = [], []
    for batch in reader.batches(job.data, EVAL, GLOBAL_BATCH // size, drop_remainder=True):
        labels.append(batch[LABEL])
        scores.append(program.score(program.prepare(batch)))
    if rank == 0:
        tell(job, "auc", reader.exact_auc(np.concatenate(labels), np.concatenate(scores)))


def timed(program: Program, inputs: Iterator[Any], steps: int, rows: int) -> dict[str, float]:
    """Returns the figures of this process for some steps with `rows` rows each."""
    cpu, started, ended = time.process_time(), time.perf_counter(), []
    for _ in range(steps):
        loss = program.step(next(inputs))
        ended.append(time.perf_counter())
    wall, cpu = ended[-1] - started, time.process_time() - cpu
    times = [after - before for before, after in zip([started, *ended], ended, strict=False)]
    return {
        "samples_per_s": rows * steps / wall,
        "wall_s": wall,
        "step_ms": statistics.median(times) * 1e3,
        "cpu_s": cpu,
        "peak_gib": peak_gib(os.getpid()),
        "loss": float(loss),
    }


def peak_gib(pid: int) -> float:
    """Returns the most memory that a process has had resident (VmHWM), in GiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**20


def tell(job: Job, name: str, value: object) -> None:
    """Writes a file for the runner, which is complete once it exists."""
    partial = job.folder / f"{name}.partial"
    partial.write_text(json.dumps(value))
    partial.rename(job.folder / name)


def await_file(job: Job, name: str) -> None:
    """Waits for a file of the job. The runner ends this process if it never comes."""
    while not (job.folder / name).exists():
        time.sleep(0.001)
