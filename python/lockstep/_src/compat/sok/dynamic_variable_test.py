from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import job, lookups, optimizers, rows, starting
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep.testing import call_workers

tf1 = tf.compat.v1


def test_arguments_and_properties(started):
    variable = DynamicVariable(3, "13", name="table", init_capacity=64, max_capacity=128)
    assert (variable.dimension, variable.key_type, variable.handle_dtype) == (3, tf.int64, tf.float32)
    assert (variable.backend_type, variable.mode, variable.target_gpu, variable.num_gpus) == ("hybrid", None, -1, 1)
    assert variable.config_dict == {"init_capacity": 64, "max_capacity": 128}
    assert variable.initializer_str == "13" and variable.indices is None and variable.trainable
    assert "table" in repr(variable) and variable.shape.as_list() == [None, 3]
    assert DynamicVariable(3).name.startswith("sok_dynamic_Variable_")
    on_one = DynamicVariable(
        3, var_type="hbm", key_type=tf.int32, dtype=tf.float16, mode="localized:0", trainable=False
    )
    assert (on_one.key_type, on_one.dtype, on_one.target_gpu) == (tf.int32, tf.float16, 0)
    np.testing.assert_array_equal(variable.key_map(np.arange(3)), np.arange(3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"var_type": "ssd"}, ValueError, "var_type is 'ssd', wanted 'hbm' or 'hybrid'"),
        ({"key_type": tf.int32}, NotImplementedError, "only key_type tf.int64 is supported"),
        ({"key_type": tf.string}, TypeError, "key_type is string"),
        ({"dtype": tf.float64}, TypeError, "rows are float64"),
        ({"initializer": "glorot"}, ValueError, "Unrecognized initializer {glorot}"),
        ({"constraint": tf.abs}, NotImplementedError, "got a constraint"),
        ({"mode": "localized:5"}, RuntimeError, "only 1 GPU"),
        ({"capacity": 5}, TypeError, "has no option 'capacity'; wanted one of init_capacity, max_capacity"),
        ({"max_capacity": 0}, ValueError, "max_capacity is 0"),
        ({"init_capacity": 5, "max_capacity": 4}, ValueError, "init_capacity is 5, wanted at most max_capacity"),
        ({"filter_ratio": 1.5}, ValueError, "filter_ratio is 1.5"),
        ({"evict_strategy": "kCustomized"}, NotImplementedError, "programs cannot set scores"),
        ({"evict_strategy": "lru"}, ValueError, "Unrecognized evict_strategy {lru}"),
    ],
)
def test_wrong_arguments(started, arguments, error, message):
    with pytest.raises(error, match=message):
        DynamicVariable(3, **arguments)


def test_options_of_gpus_are_named_in_a_warning(started):
    with pytest.warns(UserWarning, match=r"have no effect: max_hbm_for_vectors, device_id \(for GPUs"):
        DynamicVariable(3, max_hbm_for_vectors=2, device_id=0, max_capacity=4)
    with pytest.warns(UserWarning, match=r"have no effect: max_capacity \(only for var_type='hybrid'"):
        DynamicVariable(3, var_type="hbm", max_capacity=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DynamicVariable(3, max_capacity=4, init_capacity=4, evict_strategy="kLfu", filter_ratio=0.5)


@pytest.mark.parametrize("strategy", ["kLru", "kLfu"])
def test_the_strategy_is_read_from_its_own_option(started, strategy):
    """The original reads `evict_strategy` at the place of `io_by_cpu`, and `device_id` at the place of `block_size`."""
    variable = DynamicVariable(1, "0", max_capacity=2, evict_strategy=strategy)
    for keys in ([1], [1], [2], [3], [4]):
        variable.sparse_read(tf.constant(keys, tf.int64))
        variable.end_step()
    variable.end_step()
    keys = rows.export(variable)[0].numpy().tolist()
    assert (1 in keys) == (strategy == "kLfu"), keys


@pytest.mark.parametrize(
    ("initializer", "check"),
    [
        ("13", lambda v: (v == 13).all()),
        ("ones", lambda v: (v == 1).all()),
        ("zeros", lambda v: (v == 0).all()),
        ("uniform", lambda v: v.min() >= 0 and v.max() < 1 and v.std() > 0.2),
        ("normal", lambda v: v.min() < -1 and v.max() > 1),
        (None, lambda v: v.min() < -1 and v.max() > 1),
        ("random", lambda v: v.min() < -1 and v.max() > 1),
        (tf.constant_initializer(2.0), lambda v: (v == 2).all()),
        (7, lambda v: (v == 7).all()),
    ],
)
@pytest.mark.parametrize("var_type", ["hbm", "hybrid"])
def test_initializers(started, initializer, check, var_type):
    variable = DynamicVariable(8, initializer, var_type=var_type)
    assert check(tf.nn.embedding_lookup(variable, [0, 1, 2**40, -5] + list(range(50, 80))).numpy())


def test_the_programs_of_the_documentation(started):
    variable = DynamicVariable(dimension=3, initializer="13")
    indices = tf.convert_to_tensor([0, 1, 2**40], dtype=tf.int64)
    np.testing.assert_array_equal(variable.size, [0, 3])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, indices))
    np.testing.assert_array_equal(variable.size, [3, 3])
    grads = tape.gradient(loss, [variable])
    np.testing.assert_array_equal(grads[0].indices, indices, "a gradient is by key")
    optimizers.SGD(1.0).apply_gradients(zip(grads, [variable], strict=True))
    np.testing.assert_array_equal(tf.nn.embedding_lookup(variable, indices), np.full([3, 3], 12.0))


def test_scatters_are_by_key(started):
    variable = DynamicVariable(2, "1", var_type="hbm")

    def slices(keys, values):
        return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(keys, tf.int64))

    variable.scatter_add(slices([5, 9, 5], [[1, 1], [2, 2], [3, 3]]))
    variable.scatter_sub(slices([9], [[10, 20]]))
    variable.scatter_update(slices([7, 7], [[1, 2], [3, 4]]))
    keys, values = rows.export(variable)
    np.testing.assert_array_equal(keys, [5, 7, 9])
    np.testing.assert_array_equal(values, [[5, 5], [3, 4], [-7, -17]])
    for scatter in (variable.scatter_add, variable.scatter_sub, variable.scatter_update):
        with pytest.raises(TypeError, match="sparse_delta is not IndexedSlices"):
            scatter(tf.ones([1, 2]))


def test_assign_casts_keys_and_keeps_slots(started):
    """The original drops the cast of the keys."""
    variable = DynamicVariable(2, "1", var_type="hbm", key_type=tf.int32)
    wrapper = optimizers.wrap(tf1.train.AdagradOptimizer(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, [3]))
    wrapper.apply_gradients([(tape.gradient(loss, variable), variable)])
    rows.assign(variable, tf.constant([3, 4], tf.int64), np.array([[5, 6], [7, 8]], np.float64))
    keys, values = rows.export(variable)
    assert keys.dtype == tf.int32
    np.testing.assert_array_equal(keys, [3, 4])
    np.testing.assert_array_equal(values, [[5, 6], [7, 8]])
    np.testing.assert_allclose(wrapper.get_slot(variable, "accumulator"), [[1.1, 1.1], [0.1, 0.1]], rtol=1e-6)
    with pytest.raises(TypeError, match="indices: got float32"):
        rows.assign(variable, [1.0], [[1.0, 2.0]])
    for wrong in (tf.Variable([1.0]), None):
        with pytest.raises(TypeError, match="wanted sok.Variable or sok.DynamicVariable"):
            rows.assign(wrong, [1], [[1.0]])
        with pytest.raises(TypeError, match="wanted sok.Variable or sok.DynamicVariable"):
            rows.export(wrong)


def test_static_mode(started):
    variable = DynamicVariable(2, "1", var_type="hbm")
    with pytest.raises(RuntimeError, match="to_dynamic.. must be called in static mode"):
        variable.to_dynamic()
    for method in (variable.read_value, variable.value, lambda: variable.assign_add([[1.0, 1.0]])):
        with pytest.raises(NotImplementedError, match="is dynamic"):
            method()
    indices = tf.constant([4, 8], tf.int64)
    variable.to_static(indices)
    assert variable.is_static() and variable.indices is indices
    with pytest.raises(RuntimeError, match="to_static.. must be called in dynamic mode"):
        variable.to_static(indices)
    np.testing.assert_array_equal(variable.numpy(), [[1, 1], [1, 1]])
    variable.assign_add([[1.0, 2.0], [3.0, 4.0]])
    slices = tf.IndexedSlices(tf.constant([[1.0, 1.0]]), tf.constant([1]))
    tf1.train.GradientDescentOptimizer(1.0).apply_gradients([(slices, variable)])
    np.testing.assert_array_equal(tf.nn.embedding_lookup(variable, [1]), [[3, 4]])
    variable.to_dynamic()
    assert not variable.is_static() and variable.indices is None
    np.testing.assert_array_equal(variable.sparse_read(indices), [[2, 3], [3, 4]])
    with pytest.raises(NotImplementedError):
        variable.value()


def test_low_frequency_filter(started):
    variable = DynamicVariable(2, "1", max_capacity=1024, filter_ratio=0.3)
    old, new = tf.range(100, dtype=tf.int64), tf.range(1000, dtype=tf.int64)

    def lookup(ids, filtering):
        with tf.GradientTape() as tape:
            found = lookups.lookup_sparse(
                variable, tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids)), None, "sum", filtering
            )
            loss = tf.reduce_sum(found)
        return found.numpy()[:, 0], tape.gradient(loss, variable)

    lookup(old, filtering=False)
    found, gradient = lookup(new, filtering=True)
    assert (found[:100] == 1).all(), "keys that are there are not filtered"
    kept = np.flatnonzero(found)
    assert 0.2 * 900 < len(kept) - 100 < 0.4 * 900
    assert set(found) == {0.0, 1.0}
    np.testing.assert_array_equal(rows.export(variable)[0], kept)
    np.testing.assert_array_equal(np.sort(gradient.indices), kept)
    with pytest.raises(NotImplementedError, match="wants var_type='hybrid', got 'hbm'"):
        lookups.lookup_sparse(DynamicVariable(2, var_type="hbm"), tf.ragged.constant([[1]], tf.int64), None, None, True)


def filtered(name, keys, times):
    """Returns the keys that each of several lookups has added."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(5)
        variable = DynamicVariable(2, "1", name=name, filter_ratio=0.3)
        ids = tf.RaggedTensor.from_row_lengths(tf.constant(keys, tf.int64), tf.ones([len(keys)], tf.int64))
        found = lookups.lookup_sparse(variable, ids, None, "sum", True)
        session.run(tf1.global_variables_initializer())
        return [{k for k, row in zip(keys, session.run(found), strict=True) if row.any()} for _ in range(times)]


def test_the_low_frequency_filter_draws_by_seed_table_key_and_lookup(started):
    keys = list(range(-100, 100))
    first = filtered("a", keys, 3)
    assert first == filtered("a", keys[::-1], 3) and first != filtered("b", keys, 3)
    # A part of the keys, as another rank has them, gets the same draws.
    assert [found & set(keys[:50]) for found in first] == filtered("a", keys[:50], 3)
    assert first[0] < first[1] < first[2], "a key that is refused may be added later"


def test_keys_of_32_bits(started):
    variable = DynamicVariable(1, "1", var_type="hbm", key_type=tf.int32)
    ids = tf.ragged.constant([[1, 2], [-3]], tf.int64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lookups.lookup_sparse(variable, ids, None, "sum", False))
    optimizers.SGD(1.0).apply_gradients([(tape.gradient(loss, variable), variable)])
    keys, values = rows.export(variable)
    np.testing.assert_array_equal(keys, [-3, 1, 2])
    np.testing.assert_array_equal(values, np.zeros([3, 1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"keys are int32, got \[4294967298\]"):
        lookups.lookup_sparse(variable, tf.ragged.constant([[2**32 + 2, 2]], tf.int64), None, "sum", False)


@pytest.mark.parametrize(("capacity", "per_step"), [(4, 4), (6, 4), (4, 8)])
@pytest.mark.parametrize("trains", [True, False])
def test_read_and_evict_loses_no_key(started, capacity, per_step, trains):
    variable, sgd, gone = DynamicVariable(1, "1", max_capacity=capacity), optimizers.SGD(1.0), []
    for step in range(6):
        with tf.GradientTape() as tape:
            keys = tf.range(step * per_step, (step + 1) * per_step, dtype=tf.int64)
            found, evicted, _ = lookups.sparse_read_and_evict(variable, keys)
            loss = tf.reduce_sum(found)
        if trains:
            sgd.apply_gradients([(tape.gradient(loss, variable), variable)])
        gone += evicted.numpy().tolist()
        assert variable.size[0] <= max(capacity, per_step)
    left = rows.export(variable)[0].numpy().tolist()
    assert sorted(gone + left) == list(range(6 * per_step))


def test_read_and_evict(started):
    variable = DynamicVariable(2, "11", init_capacity=8, max_capacity=16)
    sgd, gone = optimizers.SGD(1.0), set()
    for step in range(5):
        with tf.GradientTape() as tape:
            keys = tf.range(step * 8, step * 8 + 8, dtype=tf.int64)
            found, evicted, values = lookups.sparse_read_and_evict(variable, keys)
            loss = tf.reduce_sum(found)
        sgd.apply_gradients([(tape.gradient(loss, variable), variable)])
        np.testing.assert_array_equal(found, np.full([8, 2], 11.0))
        assert not gone & set(evicted.numpy().tolist())
        assert (values.numpy() == 10.0).all() and len(values) == len(evicted)
        gone |= set(evicted.numpy().tolist())
    assert gone == set(range(24)) and variable.size[0] == 16
    for wrong in (DynamicVariable(2, var_type="hbm"), tf.Variable([1.0])):
        with pytest.raises(TypeError, match="only use on hybrid backend"):
            lookups.sparse_read_and_evict(wrong, [1])


def test_changes_since_a_time(started):
    variable = DynamicVariable(2, "1", max_capacity=16)
    variable.sparse_read(tf.constant([1, 2], tf.int64))
    assert [len(part) for part in rows.changed_since(variable, int(time.time()) + 5)] == [0, 0]
    keys, values = rows.changed_since(variable, int(time.time()) - 60)
    np.testing.assert_array_equal(keys, [1, 2])
    np.testing.assert_array_equal(values, np.ones([2, 2]))


def test_in_a_graph(started, graph):
    variable = DynamicVariable(2, "3", var_type="hbm", name="table")
    keys = tf1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, keys))
    train_op = optimizers.SGD(1.0).apply_gradients([(tf1.gradients(loss, variable)[0], variable)])
    assigned = rows.assign(variable, [50], [[8.0, 9.0]])
    exported = rows.export(variable)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train_op, {keys: [7, 9, 7]})
        session.run(assigned)
        found = session.run(exported)
        np.testing.assert_array_equal(session.run(variable), found[1])
    np.testing.assert_array_equal(found[0], [7, 9, 50])
    np.testing.assert_array_equal(found[1], [[1, 1], [2, 2], [8, 9]])


def check_places():
    starting.init("horovod", use_legacy_optimizer=False)
    rank, ranks = job.rank(), job.num_ranks()
    spread = DynamicVariable(2, "1", var_type="hbm")
    whole = DynamicVariable(2, "1", max_capacity=64, mode=f"localized:{ranks - 1}")
    ids = tf.ragged.constant([[0, 1, 2], [7, 2**40 + rank]], tf.int64)
    found = lookups.lookup_sparse([spread, whole], [ids, ids], None, ["sum", "mean"], False)
    np.testing.assert_array_equal(found[0], [[3, 3], [2, 2]])
    np.testing.assert_array_equal(found[1], np.ones([2, 2]))
    keys = np.array([0, 1, 2, 7, *(2**40 + np.arange(ranks))])
    np.testing.assert_array_equal(rows.export(spread)[0], keys[keys % ranks == rank])
    np.testing.assert_array_equal(rows.export(whole)[0], keys if rank == ranks - 1 else [])
    # SOK's own reads are of this rank, also for keys of others.
    tf.nn.embedding_lookup(spread, tf.constant([1000 + rank], tf.int64))
    assert 1000 + rank in rows.export(spread)[0].numpy()
    np.testing.assert_array_equal(lookups.all2all_dense_embedding(whole, [[1], [2]]), np.ones([2, 1, 2]))


@pytest.mark.workers
def test_places_of_keys():
    call_workers(check_places, 3, timeout_s=120)
