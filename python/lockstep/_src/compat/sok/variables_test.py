from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import job, rows, starting
from lockstep._src.compat.sok.variables import DistributedVariable, LocalizedVariable, make
from lockstep._src.engine.context import context
from lockstep._src.tables import sharded
from lockstep.testing import call_workers

tf1 = tf.compat.v1
WHOLE = np.arange(17 * 3).reshape(17, 3)


@pytest.mark.parametrize(
    "value",
    [WHOLE, WHOLE.tolist(), tf.constant(WHOLE), tf.Variable(WHOLE), lambda: tf.constant(WHOLE)],
    ids=["array", "list", "tensor", "variable", "function"],
)
@pytest.mark.parametrize("mode", [None, "distributed", "localized:0"])
def test_a_value_in_any_form(started, value, mode):
    variable = make(value, dtype=tf.float32, mode=mode)
    assert isinstance(variable, LocalizedVariable if mode == "localized:0" else DistributedVariable)
    assert variable.dtype == tf.float32 and variable.global_shape == (17, 3)
    np.testing.assert_array_equal(variable.numpy(), WHOLE)


def test_the_type_of_the_value_is_kept_without_a_type(started):
    assert make(WHOLE).dtype == tf.int64
    assert make(WHOLE.astype(np.float16)).dtype == tf.float16


def test_a_value_with_one_dimension_is_one_row(started):
    """The original has a typo here, and raises AttributeError."""
    variable = make([1.0, 2.0, 3.0])
    assert variable.global_shape == (1, 3)
    np.testing.assert_array_equal(variable.numpy(), [[1.0, 2.0, 3.0]])
    assert make([1.0, 2.0], mode="localized:0").global_shape == (1, 2)


def test_an_initializer_draws_the_table(started):
    initializer = tf.random_uniform_initializer(-2.0, -1.0)
    variable = make(shape=[5, 2], initializer=initializer, name="drawn")
    assert variable.dtype == tf.float32 and variable.shape == [5, 2]
    assert tf.reduce_max(variable) < -1.0
    again = make(shape=[5, 2], initializer=initializer, name="drawn_too", mode="localized:0")
    assert not np.array_equal(variable.numpy(), again.numpy()), "the seed is from the name"


def test_arguments_of_an_ordinary_variable(started):
    variable = make(WHOLE, False, name="own")
    assert not variable.trainable and variable.name == "own:0"
    assert make(WHOLE).name.startswith("sok_static_Variable_")
    assert make(WHOLE).trainable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "wanted an initial_value, or an initializer and a shape"),
        ({"initial_value": WHOLE, "initializer": tf.zeros_initializer()}, "one of the two"),
        ({"initializer": tf.zeros_initializer()}, "the shape is <unknown>"),
        ({"initial_value": np.zeros([2, 3, 4])}, r"the shape is \(2, 3, 4\), wanted \[rows, dimension\]"),
        ({"initial_value": np.zeros([0])}, r"the shape is \(0,\)"),
        ({"initial_value": 1.0}, r"the shape is \(\)"),
        ({"initial_value": WHOLE, "mode": "localised:0"}, "mode: got 'localised:0', wanted 'distributed'"),
        ({"initial_value": WHOLE, "mode": "localized"}, "mode: got 'localized'"),
        ({"initial_value": WHOLE, "mode": "localized:1"}, "only 1 GPU.* on 1th"),
        ({"initial_value": WHOLE, "num_gpus": 2}, "num_gpus: got 2, wanted 1"),
    ],
)
def test_wrong_arguments(started, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


def test_errors_are_those_of_the_original_too(started):
    with pytest.raises(RuntimeError):
        make(WHOLE, mode="localized:7")
    with pytest.raises(RuntimeError):
        make(np.zeros([2, 3, 4]))


def test_before_init(monkeypatch):
    monkeypatch.setattr(job, "_tool", None)
    with pytest.raises(RuntimeError, match=r"Did you forget to call sok.init\(\)"):
        make(WHOLE)


def test_in_a_graph(started, graph):
    variable = make(WHOLE, dtype=tf.float32, name="table")
    assert variable in tf1.trainable_variables() and variable in tf1.global_variables()
    assigned = rows.assign(variable, [3], [[7.0, 8.0, 9.0]])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(variable), WHOLE)
        session.run(assigned)
        np.testing.assert_array_equal(session.run(variable)[3], [7.0, 8.0, 9.0])


def test_export_and_assign(started):
    variable = make(WHOLE, dtype=tf.float32)
    keys, values = rows.export(variable)
    np.testing.assert_array_equal(keys, range(17))
    np.testing.assert_array_equal(values, WHOLE)
    rows.assign(variable, tf.constant([2, 16], tf.int32), np.ones([2, 3]))  # float64 and int32 are cast
    np.testing.assert_array_equal(variable.numpy()[[2, 16, 3]], [[1.0] * 3, [1.0] * 3, WHOLE[3]])
    for wrong in (17, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0 does not have the rows"):
            rows.assign(variable, [wrong], np.ones([1, 3]))
    with pytest.raises(TypeError, match="indices: got float32"):
        rows.assign(variable, [1.0], np.ones([1, 3]))


def check_places():
    starting.init("horovod", use_legacy_optimizer=False)
    rank, ranks = job.rank(), job.num_ranks()
    by_rows = make(WHOLE, dtype=tf.float32)
    np.testing.assert_array_equal(by_rows.numpy(), WHOLE[rank::ranks])
    assert (by_rows.target_gpu, by_rows.num_gpus, by_rows.global_gpu_id) == (-1, ranks, rank)
    np.testing.assert_array_equal(by_rows.key_map(np.arange(rank, 17, ranks)), range(len(WHOLE[rank::ranks])))
    whole = make(WHOLE, dtype=tf.float32, mode=f"localized:{ranks - 1}")
    assert whole.shape == [17 if rank == ranks - 1 else 0, 3] and whole.target_gpu == ranks - 1
    assert whole.key_map(5) == 5 and whole.global_shape == (17, 3)
    drawn = make(shape=[17, 3], initializer=tf.random_normal_initializer(), name="drawn")
    np.testing.assert_array_equal(rows.export(by_rows)[0], np.arange(rank, 17, ranks))
    few = make([[1.0, 2.0]], name="few")
    assert few.shape[0] == (rank == 0)
    for variable in (by_rows, whole, few):
        assert sharded.is_sharded(variable), "scopes leave its gradients alone"
    if ranks > 1:
        other = (rank + 1) % ranks
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"rank {rank} does not have the rows \[{other}\]"):
            rows.assign(by_rows, [other], np.ones([1, 3]))
    return drawn.numpy()


@pytest.mark.workers
@pytest.mark.parametrize("ranks", [2, 3])
def test_places_of_rows(ranks):
    parts = call_workers(check_places, ranks, timeout_s=120)
    drawn = np.empty([17, 3], np.float32)
    for rank, part in enumerate(parts):
        drawn[rank::ranks] = part
    (alone,) = call_workers(check_places, 1, timeout_s=120)
    np.testing.assert_array_equal(drawn, alone, "rows don't depend on the number of ranks")


def check_single():
    starting.init("single", use_legacy_optimizer=False)
    assert (job.rank(), job.num_ranks(), job.local_rank(), context.world_size) == (0, 1, 0, 2)
    assert make(WHOLE).shape == [17, 3]
    assert not context.is_initialized


@pytest.mark.workers
def test_a_process_by_itself():
    call_workers(check_single, 2, timeout_s=120)
