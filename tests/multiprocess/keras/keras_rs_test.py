"""`DistributedEmbedding` of Keras RS on two workers computes what plain Keras RS computes on all rows.

The oracle is Keras' own `MultiOptimizer`, which gives each table the optimizer that its `TableConfig` names.
"""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers
from tests.multiprocess.keras import keras_rs_worker as worker

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("keras_rs") is None, reason="keras_rs is not installed; it needs Keras 3 and Python 3.11"
)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Returns the results of plain Keras RS, and of each worker."""
    [expected] = call_workers(worker.plain, 1, 2, timeout_s=400)
    folder = tmp_path_factory.mktemp("keras_rs")
    return expected, call_workers(worker.fit, 2, str(folder), timeout_s=400)


def assert_close(got, expected, parts):
    for part in parts:
        tf.nest.map_structure(lambda g, e: np.testing.assert_allclose(g, e, atol=1e-5), got[part], expected[part])


def test_tables_are_sharded_and_trained_by_the_optimizers_of_their_configurations(job):
    expected, outcomes = job
    for rank, outcome in enumerate(outcomes):
        rows = [len(range(rank, worker.SIZES[table], 2)) for table in ("genre", "item", "tag")]
        assert outcome["local"] == [(count, worker.DIM) for count in rows]
        assert outcome["trained"]["slots"].keys() == {f"{table}_table" for table in worker.SIZES}
        assert_close(outcome["trained"], expected, ["tables", "dense", "slots", "predicted"])


@pytest.mark.parametrize("name", ["one.weights.h5", "parts.weights.json"])
def test_saved_weights_are_whole_and_load_in_another_model(job, name):
    _, outcomes = job
    for outcome in outcomes:
        assert_close(outcome[name], outcome["trained"], ["tables", "dense", "predicted"])


def test_a_loaded_model_continues_as_the_saved_one(job):
    _, outcomes = job
    for outcome in outcomes:
        assert_close(outcome["model.keras"], outcome["trained"], ["tables", "dense", "slots", "predicted"])
        saved, loaded = outcome["continued"]
        assert_close(loaded, saved, ["tables", "dense", "slots", "predicted"])
