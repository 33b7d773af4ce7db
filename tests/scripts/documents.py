"""Common parts of the tests of documented programs: their data, how they run, and the results that they must compute.

All training programs have one model, `logit = slope * price + table[item]`, which begins at zeros. It is so small that
numpy computes the loss of each step, for any number of workers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

ITEMS, BATCH, RATE = 97, 50, 0.5
Columns = Mapping[str, np.ndarray]


def write_rows(path: Path, seed: int, rows: int) -> Columns:
    """Writes rows whose labels depend only on the item: even items are liked. Returns the columns."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, ITEMS, rows)
    columns = {"item": item, "price": rng.integers(-1, 2, rows), "label": (item % 2 == 0).astype(np.int64)}
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return columns


def run_program(
    command: Sequence[str], folder: Path, workers: int | None = 2, variables: Mapping[str, str] | None = None
) -> list[str]:
    """Runs `python -m hybridbackend.run -n WORKERS --tf1 python COMMAND`. Returns each worker's output."""
    launcher = [sys.executable, "-m", "hybridbackend.run", *(["-n", str(workers)] if workers else []), "--tf1"]
    variables = {"CUDA_VISIBLE_DEVICES": "", **(variables or {})}
    return run_launcher([*launcher, sys.executable, *command], folder, workers or 1, variables)


def run_launcher(
    words: Sequence[str], folder: Path, workers: int, variables: Mapping[str, str], timeout_s: float = 150
) -> list[str]:
    """Runs a launcher's command line that starts this number of workers. Returns each worker's output."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    run = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert run.returncode == 0, run.stderr
    if workers == 1:
        return [run.stdout]
    return ["\n".join(re.findall(rf"^\[{rank}\](?: |<stdout>:)(.*)$", run.stdout, re.M)) for rank in range(workers)]


def printed(output: str, example: str, what: str = "loss") -> list[float]:
    """Returns the numbers in a worker's lines `EXAMPLE WHAT NUMBER`."""
    return [float(value) for value in re.findall(rf"^{re.escape(example)} {what} (\S+)$", output, re.M)]


def halves(columns: Columns, workers: int = 2) -> list[Columns]:
    """Returns each worker's share: contiguous rows."""
    parts = {name: np.array_split(values, workers) for name, values in columns.items()}
    return [{name: values[w] for name, values in parts.items()} for w in range(workers)]


class Training:
    """The model trained by numpy. Each step takes one batch of each worker, as one process would with all rows.

    Args:
      shares: each worker's rows. A worker without further rows takes part with none.
      steps: the number of steps; None: until the last worker's end.

    Attributes:
      losses: [steps][workers], each worker's own mean loss before the step's update; NaN for a batch without rows.
      slope, table: the final weights.

    """

    def __init__(self, shares: Sequence[Columns], steps: int | None = None, rate: float = RATE) -> None:
        self.slope, self.table = 0.0, np.zeros(ITEMS)
        self.losses: list[list[float]] = []
        count = max(-(-len(share["item"]) // BATCH) for share in shares)
        for step in range(count if steps is None else steps):
            rows = slice(step * BATCH, (step + 1) * BATCH)
            self._step([{name: values[rows] for name, values in share.items()} for share in shares], rate)

    def _step(self, batches: Sequence[Columns], rate: float) -> None:
        self.losses.append([self._loss(batch) for batch in batches])
        batch = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
        error = (self.predict(batch) - batch["label"]) / len(batch["label"])
        self.slope -= rate * np.sum(error * batch["price"])
        np.subtract.at(self.table, batch["item"], rate * error)

    def predict(self, batch: Columns) -> np.ndarray:
        """Returns the probabilities that the rows' items are liked."""
        return 1 / (1 + np.exp(-(self.slope * batch["price"] + self.table[batch["item"]])))

    def _loss(self, batch: Columns) -> float:
        if not len(batch["label"]):
            return float("nan")
        p = self.predict(batch)
        return float(np.mean(-np.where(batch["label"] == 1, np.log(p), np.log1p(-p))))


def served(exported: str, price: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Returns stock TensorFlow's scores from an export, whose signature has the sparse feature in separate parts."""
    serve = tf.saved_model.load(exported).signatures["serving_default"]
    scores = serve(
        price=tf.constant(price),
        item_indices=tf.constant(np.stack([np.arange(len(item)), np.zeros(len(item), np.int64)], axis=1)),
        item_values=tf.constant(item),
        item_dense_shape=tf.constant([len(item), 1], tf.int64),
    )
    return scores["score"].numpy()
