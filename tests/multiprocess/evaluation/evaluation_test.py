"""Metrics, evaluation and export of a job of three workers with unequal data, against plain TensorFlow on all of it."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow.compat.v1 as tf

from lockstep.testing import call_workers
from tests.multiprocess.evaluation import evaluation_worker as worker

pytestmark = pytest.mark.oldest

WORKERS = 3


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Returns the folder, and the results of each worker by rank."""
    folder = tmp_path_factory.mktemp("job")
    pq.write_table(pa.table({name: range(worker.ROWS) for name in worker.COLUMNS}), folder / "columns.parquet")
    return folder, call_workers(worker.work, WORKERS, str(folder), timeout_s=120)


def served(exported, inputs, count, outputs="rows"):
    """Returns what stock TensorFlow serves if each input is the numbers below `count`: a row for each output."""
    code = (
        "import sys, tensorflow as tf; serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default'];"
        f"found = serve(**dict.fromkeys({inputs!r}.split(','), tf.range({count}, dtype=tf.int64)));"
        f"[print(*found[name].numpy().reshape(-1)) for name in {outputs!r}.split(',')];"
        "assert not {'lockstep', 'hybridbackend'} & set(sys.modules)"
    )
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, exported], env=environ, check=True, timeout=500, capture_output=True
    )
    return [list(map(float, line.split())) for line in done.stdout.splitlines()]


def test_metrics_are_tensorflows_on_the_data_of_all_workers(job):
    _, results = job
    with tf.Graph().as_default(), tf.Session() as session:
        feeds = worker.placeholders()
        built = worker.metrics_of(tf.metrics, *feeds)
        session.run(tf.local_variables_initializer())
        for step, shares in enumerate(zip(*map(worker.samples, range(WORKERS)), strict=True)):
            union = [np.concatenate(arrays) for arrays in zip(*shares, strict=True)]
            wanted = session.run({n: update for n, (_, update) in built.items()}, dict(zip(feeds, union, strict=True)))
            for name in built:
                updated, value = results[0]["metrics"][name][step]
                assert updated == value
                np.testing.assert_allclose(value, wanted[name], rtol=1e-5, err_msg=f"{name} after update {step}")


# Promise (hybridbackend.md): all groups count (HybridBackend, a wrong result: `gauc` drops the first and last group of
# each batch).
def test_gauc_is_that_of_all_groups_of_all_workers(job):
    _, results = job
    total = count = 0
    for step, shares in enumerate(zip(*map(worker.samples, range(WORKERS)), strict=True)):
        for labels, predictions, weights in shares:
            groups = (3 * weights).astype(np.int64)
            for rows in np.split(np.arange(labels.size), np.flatnonzero(np.diff(groups)) + 1):
                won = predictions[rows][labels[rows] == 1][:, None] > predictions[rows][labels[rows] == 0]
                if won.size:
                    total, count = total + rows.size * won.mean(), count + rows.size
        updated, value = results[0]["metrics"]["gauc"][step]
        assert updated == value
        np.testing.assert_allclose(value, total / count, rtol=1e-6, err_msg=f"after update {step}")


def test_metrics_are_the_same_on_every_worker(job):
    _, results = job
    assert results[1]["metrics"] == results[0]["metrics"] == results[2]["metrics"]


def test_evaluation_takes_all_data_of_all_workers_each_time(job):
    _, results = job
    even = [i % 2 == 0 for rank in range(WORKERS) for i in worker.evaluated_ids(rank)]
    for result in results:
        assert [record["global_step"] for record in result["history"]] == [2, 4, 5]
        # The evaluation looked up the rows in the sharded table as trained so far.
        assert [record["trained"] for record in result["history"]] == [1, 1, 1]
        assert [record["even"] for record in result["history"]] == [np.mean(even)] * 3


def test_evaluation_takes_no_training_data(job):
    _, results = job
    assert [result["taken"] for result in results] == [list(range(5))] * WORKERS


def test_only_the_chief_writes_summaries(job):
    folder, _ = job
    (file,) = (folder / "summaries").iterdir()
    tags = [(e.step, v.tag) for e in tf.train.summary_iterator(str(file)) for v in e.summary.value]
    assert tags == [(step, tag) for step in (2, 4, 5) for tag in ("even", "trained")]


# Promise (hybridbackend.md): rows are stored in the order of their ids (HybridBackend, a wrong result: exported and
# rescaled sharded tables have permuted rows).
def test_export_of_a_sharded_table_serves_in_stock_tensorflow(job):
    folder, results = job
    assert [bool(result["exported"]) for result in results] == [True, False, False]
    assert os.listdir(folder / "export") == [os.path.basename(results[0]["exported"])]
    (rows,) = served(results[0]["exported"], "ids", worker.ROWS)
    wanted = np.repeat(5.0 * np.arange(worker.ROWS), worker.DIM)
    np.testing.assert_allclose(rows, wanted, rtol=1e-6)


def test_tables_named_by_the_place_of_a_column_serve_that_column(job):
    _, results = job
    names = [f"{name}_of_{kind}" for name in worker.COLUMNS for kind in ("table", "layer")]
    rows = served(results[0]["columns"], ",".join(worker.COLUMNS), worker.ROWS, ",".join(names))
    for name, found in zip(names, rows, strict=True):
        np.testing.assert_allclose(found, worker.COLUMNS[name[0]], rtol=1e-5, err_msg=name)


def test_export_alone_needs_no_other_worker(job):
    folder, _ = job
    # This is before the chief would give up waiting for the others.
    results = call_workers(worker.export_only, 2, str(folder), timeout_s=40)
    assert [(bool(exported), connected) for exported, _, connected in results] == [(True, False), (False, False)]
    assert "run only with this library" in results[0][1] and "(Lockstep" in results[0][1]


def test_export_with_a_collective_is_refused_by_name(job):
    folder, results = job
    assert "run only with this library" in results[0]["refused"] and "(Lockstep" in results[0]["refused"]
    assert not os.path.exists(folder / "refused") or not os.listdir(folder / "refused")
