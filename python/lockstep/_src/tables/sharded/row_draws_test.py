"""Tests that rows which are computed independently have the bits of plain TensorFlow's whole table."""

# Promise of this file (hybridbackend.md): the same values on any number of workers (HybridBackend, a wrong result:
# tables begin with other values than in one process, and an initial value of the whole shape fails).

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.tables.placement.shard import Shard
from lockstep._src.tables.sharded import initial_values

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS = 29
DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64]


def shards(rows, world_sizes=(1, 2, 3)):
    """Yields the shards of all ranks: by rows, by rows from another rank on, in blocks, whole on the last rank."""
    for size in world_sizes:
        for block, first in [(1, 0), (1, size - 1), (4, 0), (rows, size - 1)]:
            for rank in range(size):
                yield Shard(rows, rank, size, block, first)


def bits(value):
    """Returns the bits of a tensor's elements, so that signs of zero count."""
    value = np.asarray(value)
    return value.view(f"u{value.itemsize}")


def assert_rows(got, whole, shard):
    np.testing.assert_array_equal(bits(got), bits(shard.pick(np.asarray(whole))), err_msg=str(shard))


def own(initial_value, shape, shard, dtype=None):
    """Returns a worker's rows, eagerly or as a tensor of the current graph."""
    return initial_values.own_rows(initial_value, tf.TensorShape(shape), dtype, shard, "table")()


def in_graph(initial_value, shape, parts, dtype=None, seed=None):
    """Returns the rows of each of several shards, computed in a graph of their own each."""
    return [run_in_graph(functools.partial(own, initial_value, shape, shard, dtype), seed)[0] for shard in parts]


def run_in_graph(function, seed=None):
    """Returns what a function's tensor is in a graph, and the graph."""
    with tf.Graph().as_default() as graph:
        if seed is not None:
            v1.set_random_seed(seed)
        tensor = function()
        with v1.Session() as session:
            return session.run(tensor), graph


def whole_in_graph(function, seed=None):
    return run_in_graph(function, seed)[0]


# By name: a function of the shape and the type, as `tf.compat.v1.get_variable` calls it.
INITIALIZERS = {
    "v1 uniform": v1.random_uniform_initializer(-0.5, 2.0, seed=3),
    "v1 normal": v1.random_normal_initializer(1.0, 0.3, seed=4),
    "v1 truncated normal": v1.truncated_normal_initializer(0.1, 0.3, seed=5),
    "v1 variance scaling": v1.variance_scaling_initializer(seed=6),
    "v1 variance scaling, uniform": v1.variance_scaling_initializer(distribution="uniform", seed=6),
    "v1 glorot uniform": v1.glorot_uniform_initializer(seed=7),
    "v1 glorot normal": v1.glorot_normal_initializer(seed=7),
    "v1 unit scaling": v1.uniform_unit_scaling_initializer(seed=8),
    "v1 zeros": v1.zeros_initializer(),
    "v1 ones": v1.ones_initializer(),
    "v1 constant": v1.constant_initializer(0.3),
    "uniform": tf.random_uniform_initializer(-1, 1, seed=9),
    "normal": tf.random_normal_initializer(0.5, 0.1, seed=9),
    "zeros": tf.zeros_initializer(),
    "ones": tf.ones_initializer(),
    "constant": tf.constant_initializer(0.3),
    "keras uniform": tf.keras.initializers.RandomUniform(-1, 1, seed=10),
    "keras normal": tf.keras.initializers.RandomNormal(seed=10),
    "keras truncated normal": tf.keras.initializers.TruncatedNormal(seed=10),
    "keras variance scaling": tf.keras.initializers.VarianceScaling(seed=11),
    "keras glorot uniform": tf.keras.initializers.GlorotUniform(seed=12),
    "keras glorot normal": tf.keras.initializers.GlorotNormal(seed=12),
    "keras he uniform": tf.keras.initializers.HeUniform(seed=13),
    "keras he normal": tf.keras.initializers.HeNormal(seed=13),
    "keras zeros": tf.keras.initializers.Zeros(),
    "keras ones": tf.keras.initializers.Ones(),
    "keras constant": tf.keras.initializers.Constant(0.3),
    "a lambda": lambda shape, dtype: tf.random.uniform(shape, -0.1, 0.1, dtype=dtype, seed=3),
    "a stateless lambda": lambda shape, dtype: tf.random.stateless_normal(shape, [1, 2], 1.0, 0.5, dtype),
    "an older stateless operation": lambda shape, dtype: raw.StatelessTruncatedNormal(
        shape=shape, seed=[5, 6], dtype=dtype
    ),
    "a scale for each column": lambda shape, dtype: (
        tf.random.normal(shape, dtype=dtype, seed=3) * tf.cast(tf.range(1, shape[1] + 1), dtype) / 7 - 0.3
    ),
    "operands on the left": lambda shape, dtype: 2.0 / (5 - tf.random.uniform(shape, dtype=dtype, seed=3)),
    "a sum of constants": lambda shape, dtype: tf.ones(shape, dtype) * 0.3 + tf.cast(tf.range(shape[1]), dtype) / 7,
    "a row that is repeated": lambda shape, dtype: tf.broadcast_to(tf.cast(tf.range(shape[1]), dtype), shape),
    "ones like zeros": lambda shape, dtype: tf.ones_like(tf.zeros(shape, dtype)),
}


def called(name, shape, dtype):
    # Keras 3 takes names of types.
    return functools.partial(INITIALIZERS[name], shape, dtype=dtype.name if name.startswith("keras") else dtype)


@pytest.fixture
def no_whole(monkeypatch):
    """Refuses initial values that would be computed whole."""
    monkeypatch.setattr(initial_values, "WHOLE_LIMIT_BYTES", 0)


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_an_initializers_rows_eagerly(no_whole, name, dtype):
    if name.startswith("v1 constant") and dtype == tf.bfloat16:
        dtype = tf.float32
    for dim in [1, 5] if dtype == tf.float32 else [5]:
        initial_value = called(name, [ROWS, dim], dtype)
        # A stateful operation would go on in its stream if it ran twice with the same seeds.
        whole = whole_eagerly(initial_value)
        for shard in [Shard(ROWS, 1, 2), Shard(ROWS, 2, 3, 4)] if dim == 5 else [Shard(ROWS, 1, 2)]:
            assert_rows(own(initial_value, [ROWS, dim], shard), whole, shard)


def whole_eagerly(function):
    """Returns a value that is computed without a graph, as at the start of a program."""
    tf.random.set_seed(None)  # also forgets where stateful operations are in their streams
    return function()


@pytest.mark.parametrize("name", INITIALIZERS)
def test_an_initializers_rows_in_a_graph(no_whole, name):
    initial_value = called(name, [ROWS, 5], tf.float32)
    parts = [Shard(ROWS, 0, 1), Shard(ROWS, 2, 3, 4)]
    # A graph that is optimized merges operations with constants. Eager operations are what a recipe computes.
    whole = whole_eagerly(initial_value) if name in MERGED else whole_in_graph(initial_value)
    for shard, got in zip(parts, in_graph(initial_value, [ROWS, 5], parts), strict=True):
        assert_rows(got, whole, shard)


MERGED = ("a scale for each column", "operands on the left", "a sum of constants")


def test_a_seed_of_the_graph_counts_as_in_plain_tensorflow(no_whole):
    def make(of):
        return [of(functools.partial(tf.random.uniform, [ROWS, 3], seed=seed)) for seed in (None, 5, None)]

    shard = Shard(ROWS, 1, 2)
    part = functools.partial(own, shape=[ROWS, 3], shard=shard)
    graph = [whole_in_graph(functools.partial(make, of), seed=11) for of in (part, lambda value: value())]
    eager = []
    for of in (part, lambda value: value()):
        tf.random.set_seed(11)
        eager.append(make(of))
    tf.random.set_seed(None)
    for all_own, all_whole in (graph, eager):
        for own_rows, whole in zip(all_own, all_whole, strict=True):
            assert_rows(own_rows, whole, shard)


def test_without_any_seed_each_run_draws_other_values(no_whole):
    def initial_value():
        return tf.random.uniform([ROWS, 3])

    shard = Shard(ROWS, 1, 2)
    with tf.Graph().as_default(), v1.Session() as session:
        rows = own(initial_value, [ROWS, 3], shard)
        first, second = session.run(rows), session.run(rows)
    eager = np.asarray(own(initial_value, [ROWS, 3], shard))
    assert np.all((first >= 0) & (first < 1)) and first.shape == (14, 3)
    assert len({values.tobytes() for values in (first, second, eager)}) == 3


@pytest.mark.parametrize("seed", [None, 4])
def test_the_rows_of_a_tensor_of_the_graph(no_whole, seed):
    shard = Shard(ROWS, 0, 2)

    def tensor():
        return v1.random_uniform([ROWS, 3], -1, 1, seed=seed)

    got = whole_in_graph(lambda: own(tensor(), [ROWS, 3], shard), seed=8)
    assert_rows(got, whole_in_graph(tensor, seed=8), shard)


def test_operands_that_a_function_captures(no_whole):
    shape, shard = [ROWS, 3], Shard(ROWS, 0, 2)
    scale, seed = tf.constant([1.5, 0.1, 7.0]), tf.constant([3, 4])

    def initial_value(scale=scale, seed=seed):
        return tf.random.stateless_uniform(shape, seed) * tf.sqrt(scale)

    assert_rows(own(initial_value, shape, shard), initial_value(), shard)

    def with_placeholders(of):
        scale_, seed_ = v1.placeholder_with_default(scale.numpy(), [3]), v1.placeholder_with_default(seed.numpy(), [2])
        return of(functools.partial(initial_value, scale_, seed_))

    got = whole_in_graph(lambda: with_placeholders(functools.partial(own, shape=shape, shard=shard)))
    assert_rows(got, whole_in_graph(lambda: with_placeholders(lambda value: value())), shard)


LARGE = {
    **{name: functools.partial(called, name) for name in INITIALIZERS},
    "an array": lambda shape, dtype: np.arange(np.prod(shape)).reshape(shape).astype(np.float32),
    "a function of an array": lambda shape, dtype: lambda: np.ones(shape, np.float32),
    "a constant": lambda shape, dtype: lambda: tf.constant(np.arange(np.prod(shape)).reshape(shape), dtype),
    "an initializer with an array": lambda shape, dtype: functools.partial(
        v1.constant_initializer(np.arange(np.prod(shape))), shape, dtype
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_no_operation_of_the_graph_is_as_large_as_the_table(no_whole, name):
    shape = [2000, 8]
    shard = Shard(2000, 1, 2)
    _, graph = run_in_graph(lambda: own(LARGE[name](shape, tf.float32), shape, shard))
    sizes = {op.name: [output.shape.num_elements() for output in op.outputs] for op in graph.get_operations()}
    assert max(max(own_sizes, default=0) for own_sizes in sizes.values()) == 8000, sizes
    assert len(graph.as_graph_def().SerializeToString()) < 50_000


def _two_draws(shape):
    return tf.random.uniform(shape, seed=1) + tf.random.uniform([1, shape[1]], seed=2)


def _after_an_assertion(shape):
    drawn = tf.random.stateless_uniform(shape, [1, 2])
    with tf.control_dependencies([tf.debugging.assert_less(drawn[:1], 1.0)]):
        return tf.identity(drawn)


WHOLE = {
    "integers": lambda shape: tf.random.stateless_uniform(shape, [1, 2], 0, 1000, tf.int32),
    "orthogonal": lambda shape: tf.keras.initializers.Orthogonal(seed=1)(shape),
    "gamma": lambda shape: tf.random.stateless_gamma(shape, [1, 2], 0.5),
    "two draws": _two_draws,
    "another random number": lambda shape: tf.random.stateless_uniform(shape, [1, 2]) * tf.random.uniform([], seed=3),
    "a factor for each row": lambda shape: (
        tf.random.stateless_uniform(shape, [1, 2]) * tf.cast(tf.range(shape[0]), tf.float32)[:, None]
    ),
    "another function": lambda shape: tf.exp(tf.random.stateless_uniform(shape, [1, 2])),
    "a cast": lambda shape: tf.cast(tf.random.stateless_uniform(shape, [1, 2]), tf.float64),
    "an assertion": _after_an_assertion,
}


@pytest.mark.parametrize("name", WHOLE)
def test_other_values_are_computed_whole_up_to_a_limit(monkeypatch, name):
    shape = [ROWS, 4]
    initial_value = functools.partial(WHOLE[name], shape)
    whole = whole_eagerly(initial_value)
    part = Shard(ROWS, 1, 2)
    whole_bytes = whole.shape.num_elements() * whole.dtype.size
    monkeypatch.setattr(initial_values, "WHOLE_LIMIT_BYTES", whole_bytes)
    tf.random.set_seed(None)
    assert_rows(own(initial_value, shape, part), whole, part)
    monkeypatch.setattr(initial_values, "WHOLE_LIMIT_BYTES", whole_bytes - 1)
    message = rf"table 'table'.* needs {whole_bytes} bytes per worker \(limit {whole_bytes - 1}\)"
    with pytest.raises(ValueError, match=message):
        own(initial_value, shape, part)
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        own(initial_value, shape, part)
    # A single worker's share is the whole table.
    tf.random.set_seed(None)
    assert_rows(own(initial_value, shape, Shard(ROWS, 0, 1)), whole, Shard(ROWS, 0, 1))


GIVEN = {
    "an array": lambda array: array,
    "a function of an array": lambda array: lambda: array,
    "a list": lambda array: array.tolist(),
    "a constant": lambda array: lambda: tf.constant(array),
    "an eager tensor": tf.constant,
    "a function of an eager tensor": lambda array: functools.partial(tf.identity, tf.constant(array)),
    "a variable": lambda array: tf.Variable(array),
    "a function that reads a variable": lambda array: tf.Variable(array).read_value,
}


@pytest.mark.parametrize("name", GIVEN)
def test_values_in_memory_have_no_limit(no_whole, name):
    array = np.random.RandomState(0).rand(ROWS, 3).astype(np.float32)
    value = GIVEN[name](array)
    for shard in shards(ROWS, [3]):
        assert_rows(own(value, array.shape, shard, tf.float32), array, shard)


def test_a_fed_value_has_no_limit(no_whole):
    array = np.random.RandomState(0).rand(ROWS, 3).astype(np.float32)
    shard = Shard(ROWS, 1, 2)
    with tf.Graph().as_default(), v1.Session() as session:
        placeholder = v1.placeholder(tf.float32, array.shape)
        assert_rows(session.run(own(placeholder, array.shape, shard), {placeholder: array}), array, shard)


def test_a_function_that_draws_with_numpy_is_called_once(no_whole):
    random = np.random.RandomState(0)
    shard = Shard(ROWS, 1, 2)
    for wrap in (lambda array: array, tf.constant):
        random.seed(1)
        got = own(lambda wrap=wrap: wrap(random.rand(ROWS, 3)), [ROWS, 3], shard)
        assert_rows(got, np.random.RandomState(1).rand(ROWS, 3), shard)


def test_a_function_that_runs_eagerly_alone():
    shard = Shard(ROWS, 1, 2)
    array = np.random.RandomState(0).rand(ROWS, 3)
    assert_rows(own(lambda: tf.identity(array).numpy(), array.shape, shard), array, shard)
