"""HybridBackend's documented programs, run as their users run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

pytestmark = pytest.mark.oldest

PROGRAM = Path(__file__).with_name("seed_003.py")
ITEMS = 97


def _write(path: Path, seed: int, rows: int) -> dict[str, np.ndarray]:
    """Labels that hang on the item alone: one that is even is liked."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, ITEMS, rows)
    columns = {"item": item, "price": rng.integers(-1, 2, rows), "label": (item % 2 == 0).astype(np.int64)}
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return columns


@pytest.fixture(scope="module", params=[1, 2])
def job(request, tmp_path_factory) -> tuple[Path, dict[str, np.ndarray], list[str]]:
    """The folder that the program wrote into, the held-out rows, and what each worker printed."""
    workers, folder = request.param, tmp_path_factory.mktemp("seed_003")
    _write(folder / "train.parquet", 0, 4000)
    held_out = _write(folder / "eval.parquet", 1, 600)
    launcher = [sys.executable, "-m", "hybridbackend.run", "-n", str(workers), "--tf1"]
    arguments = [str(folder / "train.parquet"), str(folder / "eval.parquet"), str(folder)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [*launcher, sys.executable, str(PROGRAM), *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    prefixes = [""] if workers == 1 else [f"[{rank}] " for rank in range(workers)]
    return folder, held_out, ["\n".join(re.findall(rf"^{re.escape(p)}(.*)$", run.stdout, re.M)) for p in prefixes]


def _losses(output: str, example: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{example} loss (\S+)$", output, re.M)]


def test_training_in_a_scope_takes_all_data_once_and_learns(job):
    _, _, outputs = job
    for output in outputs:
        # 4000 rows in batches of 50, a worker's share of them.
        assert len(_losses(output, "2.2")) == len(_losses(output, "3.2")) == 80 // len(outputs)
    first, last = _losses(outputs[0], "3.2")[0], _losses(outputs[0], "3.2")[-1]
    assert last < first


def test_evaluation_sees_the_model_learn(job):
    folder, _, _ = job
    (events,) = (folder / "summary").glob("events.*")
    values = [
        value.simple_value
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if value.tag == "auc"
    ]
    assert len(values) >= 2
    assert values[-1] > 0.9 and values[-1] > values[0]


def test_the_export_serves_what_the_checkpoint_holds(job):
    folder, held_out, outputs = job
    exported = re.search(r"^3\.4 exported (.+)$", outputs[0], re.M).group(1)
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / "checkpoints")))
    table, weights = checkpoint.get_tensor("model/emb_weights"), checkpoint.get_tensor("model/weights")
    logits = table[held_out["item"]] @ weights + held_out["price"][:, np.newaxis]

    # The signature's inputs are the parsed features; TensorFlow 2 takes a sparse one apart.
    rows = len(held_out["item"])
    serve = tf.saved_model.load(exported).signatures["serving_default"]
    served = serve(
        price=tf.constant(held_out["price"][:, np.newaxis]),
        item_indices=tf.constant(np.stack([np.arange(rows), np.zeros(rows, np.int64)], axis=1)),
        item_values=tf.constant(held_out["item"]),
        item_dense_shape=tf.constant([rows, 1], tf.int64),
    )
    np.testing.assert_allclose(served["score"], 1 / (1 + np.exp(-logits)), rtol=1e-5)
