"""Tests that initial values depend on seed, table and row, and on nothing else."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import ShardingRules, initial_values, sharding_scope
from lockstep.testing import call_workers

v1 = tf.compat.v1
SHAPE = [13, 5]

SEEDED = {
    "normal of version 1": v1.random_normal_initializer(seed=3),
    "uniform of version 2": tf.random_uniform_initializer(-1, 1, seed=4),
    "keras": tf.keras.initializers.GlorotUniform(seed=5),
    "variance scaling": v1.variance_scaling_initializer(seed=6),
    "truncated normal": v1.truncated_normal_initializer(seed=7),
    "orthogonal": v1.orthogonal_initializer(seed=9),
    "zeros": v1.zeros_initializer(),
    "a function": lambda shape, dtype=None, partition_info=None: tf.random.uniform(shape, seed=8, dtype=dtype),
}
UNSEEDED = {
    "default": None,
    "normal of version 1": v1.random_normal_initializer(),
    "truncated normal": v1.truncated_normal_initializer(stddev=0.1),
    "uniform of version 2": tf.random_uniform_initializer(-1, 1),
    "keras": tf.keras.initializers.GlorotUniform(),
}


def values(initializers, graph_seed, extra_ops=0, scope=None):
    with tf.Graph().as_default():
        if graph_seed is not None:
            v1.set_random_seed(graph_seed)
        for _ in range(extra_ops):
            tf.random.uniform([])
        with scope or tf.name_scope(""):
            made = {n: v1.get_variable(n.replace(" ", "_"), SHAPE, initializer=i) for n, i in initializers.items()}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return {name: session.run(variable) for name, variable in made.items()}


def values_on_worker(graph_seed):
    context.ensure_initialized()
    scope = functools.partial(sharding_scope, ShardingRules())
    return (
        values(SEEDED, graph_seed, scope=scope()),
        # As many operations were built before as there are workers; TensorFlow's own seeds would change with them.
        values(UNSEEDED, graph_seed, context.world_size, scope()),
    )


@functools.cache
def on_workers(workers, graph_seed):
    return call_workers(values_on_worker, workers, graph_seed)


# Promise (hybridbackend.md): the same values on any number of workers (HybridBackend, a wrong result: tables begin with
# other values than in one process, and an initial value of the whole shape fails).
@pytest.mark.pairwise
@pytest.mark.workers
@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize("graph_seed", [None, 11])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_initializer_with_a_seed_gives_what_it_gives_in_plain_tensorflow(workers, graph_seed, name):
    expected = values({name: SEEDED[name]}, graph_seed)[name]
    for seeded, _ in on_workers(workers, graph_seed):
        np.testing.assert_array_equal(seeded[name], expected)


@pytest.mark.workers
@pytest.mark.parametrize("name", UNSEEDED)
@pytest.mark.parametrize("graph_seed", [None, 11])
def test_without_a_seed_the_name_and_the_graphs_seed_decide(graph_seed, name):
    _, expected = on_workers(1, graph_seed)[0]
    for _, unseeded in on_workers(3, graph_seed):
        np.testing.assert_array_equal(unseeded[name], expected[name])
    other_seed = on_workers(1, 11 if graph_seed is None else None)[0][1]
    assert np.any(other_seed[name] != expected[name])
    for other_name in UNSEEDED:
        assert other_name == name or np.any(expected[other_name] != expected[name])


def test_the_users_initializer_is_left_alone():
    initializer = v1.random_normal_initializer()
    with tf.Graph().as_default():
        copy = initial_values.seeded_copy(initializer, "table")
        assert copy.seed == initial_values.name_seed("table") != initial_values.name_seed("other")
    assert initializer.seed is None
    assert type(copy) is type(initializer) and copy.stddev == initializer.stddev
    seeded = v1.random_normal_initializer(seed=1)
    assert initial_values.seeded_copy(seeded, "table") is seeded


def test_a_value_of_another_shape_is_refused():
    context.ensure_initialized()
    with (
        tf.Graph().as_default(),
        sharding_scope(ShardingRules()),
        pytest.raises(ValueError, match=r"'table'.*\(13, 4\).*\(13, 5\)"),
    ):
        v1.get_variable("table", SHAPE, initializer=lambda shape, dtype: tf.zeros([13, 4]))


@pytest.mark.workers
def test_a_large_value_that_is_not_computed_in_rows_is_refused():
    call_workers(check_refusal, 2)


def check_refusal():
    context.ensure_initialized()
    initial_values.WHOLE_LIMIT_BYTES = 259  # of this worker, which then ends
    with tf.Graph().as_default(), sharding_scope(ShardingRules()):
        v1.get_variable("drawn", SHAPE, initializer=v1.random_normal_initializer())
        with pytest.raises(ValueError, match=r"table 'table': .* rows .* needs 260 bytes per worker \(limit 259\)"):
            v1.get_variable("table", SHAPE, initializer=v1.orthogonal_initializer())


def test_a_slots_constant_is_not_kept_by_an_operation():
    context.ensure_initialized()
    with tf.Graph().as_default() as graph, sharding_scope(ShardingRules()):
        table = v1.get_variable("table", [5000, 4])
        v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, [3, 4])))
        constants = [op for op in graph.get_operations() if op.type in ("Const", "Fill")]
        assert max(op.outputs[0].shape.num_elements() or 0 for op in constants) < 1000
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            slot = next(v for v in v1.global_variables() if "Adagrad" in v.name)
            np.testing.assert_array_equal(session.run(slot), np.full([5000, 4], 0.1, np.float32))
