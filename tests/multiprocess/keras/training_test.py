"""Keras 3 on several workers computes what plain Keras computes on all rows."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import call_workers
from tests.multiprocess.keras import training_worker as worker

pytestmark = pytest.mark.skipif(
    not getattr(tf.keras, "__version__", "2").startswith("3"), reason="TensorFlow before 2.16 has no Keras 3"
)

OPTIMIZERS = {
    "Adagrad": {"class": "Adagrad", "arguments": {"learning_rate": 0.1}},
    "Adam": {"class": "Adam", "arguments": {"learning_rate": 0.02, "global_clipnorm": 0.05}},
    "SGD": {"class": "SGD", "arguments": {"learning_rate": 0.1, "momentum": 0.9, "clipnorm": 0.1}},
}
# 90 rows in batches of 8: both workers have 6 batches. The last one has 8 rows on worker 0, and 2 on worker 1.
CASES = [("Adagrad", 2, True), pytest.param(("Adam", 1, True), marks=pytest.mark.long), ("SGD", 2, False)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def job(request, tmp_path_factory):
    """Returns the results of plain Keras, and of each worker."""
    name, world, drop_remainder = request.param
    folder = tmp_path_factory.mktemp("keras")
    expected = call_workers(worker.plain, 1, OPTIMIZERS[name], world, timeout_s=400)[0]
    return expected, call_workers(worker.fit, world, OPTIMIZERS[name], str(folder), drop_remainder, timeout_s=400)


def _assert_close(got, expected):
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, atol=1e-5)


def test_weights_and_slots_are_those_of_one_process(job):
    expected, outcomes = job
    for outcome in outcomes:
        _assert_close(outcome["weights"], expected["weights"])
        _assert_close(outcome["slots"], expected["slots"])


def test_a_worker_holds_its_rows_of_the_embedding(job):
    _, outcomes = job
    rows = [outcome["local"] for outcome in outcomes]
    assert rows == [[(len(range(rank, worker.ITEMS, len(outcomes))), worker.DIM)] for rank in range(len(outcomes))]


def test_a_summary_counts_whole_tables(job):
    expected, outcomes = job
    for outcome in outcomes:
        assert outcome["counts"] == expected["counts"]


def test_metrics_are_over_the_rows_of_all_workers(job):
    expected, outcomes = job
    for outcome in outcomes:
        assert outcome["values"].keys() == expected["values"].keys()
        for name, value in expected["values"].items():
            np.testing.assert_allclose(outcome["values"][name], value, atol=1e-5)
        for name, values in expected["history"].items():
            np.testing.assert_allclose(outcome["history"][name], values, atol=1e-5)


def test_each_worker_predicts_all_of_its_rows(job):
    expected, outcomes = job
    predicted = np.concatenate([outcome["predicted"] for outcome in outcomes])
    np.testing.assert_allclose(predicted, expected["predicted"], atol=1e-5)


def test_the_export_serves_whole_tables_and_training_could_go_on(job):
    expected, outcomes = job
    columns, _ = worker.data(1, 37)
    serve = tf.saved_model.load(outcomes[0]["exported"]).signatures["serving_default"]
    (served,) = serve(**{name: tf.constant(values) for name, values in columns.items()}).values()
    np.testing.assert_allclose(served[:, 0], expected["predicted"], atol=1e-5)
    for outcome in outcomes:
        np.testing.assert_array_equal(outcome["predicted_after_export"], outcome["predicted"])


def test_saved_weights_are_whole_and_load_anywhere(job):
    expected, outcomes = job
    for outcome in outcomes:
        _assert_close(outcome["reloaded"], expected["weights"])


def test_layers_begin_as_worker_0s_wherever_they_are_built_and_stay_in_step(tmp_path):
    first, second = call_workers(worker.begin, 2, str(tmp_path), timeout_s=400)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_embedding_layers_cost_three_exchanges_a_step():
    for kinds in call_workers(worker.exchanges_of_a_step, 2, 26, timeout_s=400):
        lookups = ("LockstepRoute", "LockstepCombine", "LockstepCombineGradient")
        assert [kinds.get(kind) for kind in lookups] == [1, 1, 1], kinds


def test_a_csv_that_all_workers_read_is_warned_of_and_its_shares_train_as_one_worker(tmp_path):
    path = str(tmp_path / "rows.csv")
    np.savetxt(path, np.random.default_rng(3).normal(size=(80, 3)), delimiter=",")
    ((expected, _),) = call_workers(worker.fit_csv, 1, path, 16, timeout_s=400)[0]
    outcomes = call_workers(worker.fit_csv, 2, path, 16, timeout_s=400)
    for rank, ((weights, none), (_, warnings), (_, again)) in enumerate(outcomes):
        assert (none, len(warnings), again) == ([], int(rank == 0), [])
        _assert_close(weights, expected)


# Promise (keras.md): an epoch that leaves out data of a worker says how much.
def test_data_that_an_epoch_leaves_out_is_warned_of_with_numbers_and_progress_is_true():
    found, others = call_workers(worker.fit_unevenly, 2, timeout_s=400)
    (even, uneven, remainder, unknown), counts = zip(*found, strict=True)
    assert even == remainder == [] and len(uneven) == len(unknown) == 1, found
    for part in ("after 2 batches", "by rank: 2, 20", "Not trained: 18 batches of rank 1"):
        assert part in uneven[0]
    for part in ("after 2 batches", "by rank: unknown, unknown", "Not trained: at least 2 batches of rank 1."):
        assert part in unknown[0]
    assert [said for said, _ in others] == [[]] * 4
    assert [*counts, *(count for _, count in others)] == ["2"] * 8


def test_arrays_that_all_workers_have_are_warned_of_although_each_worker_shuffles_them():
    assert call_workers(worker.fit_arrays, 2, timeout_s=400) == [[0, 1], [0, 0]]


ALONE = [("predict", False), ("predict", True), ("evaluate", True), ("fit", False)]


@pytest.mark.parametrize(("name", "goes_on"), ALONE)
def test_a_call_on_one_rank_alone_says_what_was_done_where_and_what_to_do(name, goes_on):
    (rows, said), (_, other) = call_workers(worker.call_alone, 2, name, goes_on, timeout_s=400)
    assert rows == 8  # behind the scope, a rank may predict by itself
    assert said.startswith(f"rank 0 called {name}(), but rank 1 has finished or called something else"), said
    assert f"Call {name}() on all ranks" in said
    assert ("on one rank only" in said) == (name != "fit")
    assert other == "" if not goes_on else other.startswith("rank 1 called fit(), but rank 0 "), other


@pytest.mark.parametrize("name", ["save", "save_weights", "export"])
def test_a_model_that_one_rank_alone_saves_says_what_was_done_and_what_to_do(name, tmp_path):
    said, other = call_workers(worker.save_alone, 2, name, str(tmp_path), timeout_s=400)
    assert said.startswith(f"rank 0 called {name}(), but rank 1 has finished or called something else"), said
    assert f"Call {name}() on all ranks" in said and other == ""
    assert list(tmp_path.iterdir()) == []
