"""HybridBackend's documented programs, run as their users run them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.scripts.documents import printed, run_program, served, write_rows

pytestmark = pytest.mark.oldest

PROGRAM = Path(__file__).with_name("hybridbackend_generation_3.py")


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2])
def job(request, tmp_path_factory) -> tuple[Path, dict[str, np.ndarray], list[str]]:
    """Returns the folder that the program wrote into, the held-out rows, and each worker's output."""
    workers, folder = request.param, tmp_path_factory.mktemp("hybridbackend_generation_3")
    write_rows(folder / "train.parquet", 0, 4000)
    held_out = write_rows(folder / "eval.parquet", 1, 600)
    arguments = [str(PROGRAM), str(folder / "train.parquet"), str(folder / "eval.parquet"), str(folder)]
    return folder, held_out, run_program(arguments, folder, workers)


def test_training_in_a_scope_takes_all_data_once_and_learns(job):
    _, _, outputs = job
    for output in outputs:
        # 4000 rows in batches of 50, a worker's share of them.
        assert len(printed(output, "2.2")) == len(printed(output, "3.2")) == 80 // len(outputs)
    first, last = printed(outputs[0], "3.2")[0], printed(outputs[0], "3.2")[-1]
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

    scores = served(exported, held_out["price"][:, np.newaxis], held_out["item"])
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), rtol=1e-5)
