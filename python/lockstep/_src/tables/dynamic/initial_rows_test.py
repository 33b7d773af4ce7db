"""Tests that rows begin with the values of their initializer, for any order of the keys."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.tables.dynamic import CounterFilter, EmbeddingVariableOption, InitializerOption, initial_rows
from lockstep._src.tables.dynamic.creation import get_embedding_variable

v1 = tf.compat.v1
DIM = 5
MATRIX = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)


def rows(keys, initializer, seed=5, name="table", **options):
    """Returns the first rows of keys, from a table in a graph of its own."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(seed)
        option = EmbeddingVariableOption(init_option=InitializerOption(initializer, **options))
        table = get_embedding_variable(name, DIM, ev_option=option)
        session.run(table.initializer)
        return session.run(table.sparse_read(keys))


DRAWN = {
    "none": lambda: None,
    "uniform": lambda: v1.random_uniform_initializer(-1, 1),
    "Keras' normal": lambda: tf.keras.initializers.RandomNormal(0.5, 2.0),
    "a class": lambda: tf.keras.initializers.TruncatedNormal,
    "a seed": lambda: tf.keras.initializers.RandomUniform(seed=3),
    "a negative seed": lambda: v1.random_normal_initializer(seed=-3),
}


@pytest.mark.parametrize("name", DRAWN)
def test_initial_values_depend_on_the_key_alone(name):
    first, second = rows([3, -9], DRAWN[name]()), rows([1, 2, -9, 3], DRAWN[name]())
    np.testing.assert_array_equal(first, second[[3, 2]])
    assert len(np.unique(second)) == second.size


@pytest.mark.parametrize(("initializer", "changes"), [("uniform", True), ("a seed", False)])
def test_an_initializer_without_a_seed_gets_one_from_the_graph_and_the_name(initializer, changes):
    make = DRAWN[initializer]
    first = rows([3], make(), seed=5)
    assert np.array_equal(first, rows([3], make(), seed=6)) != changes


@pytest.mark.parametrize(
    ("initializer", "mean", "deviation", "limits"),
    [
        (None, 0.0, 0.8796, (-2.0, 2.0)),  # the deviation of a normal distribution that is truncated at 2
        (v1.random_uniform_initializer(-1.0, 3.0), 1.0, 4 / 12**0.5, (-1.0, 3.0)),
        (v1.random_normal_initializer(0.5, 2.0), 0.5, 2.0, (-np.inf, np.inf)),
        (v1.truncated_normal_initializer(0.5, 0.1), 0.5, 0.08796, (0.3, 0.7)),
    ],
    ids=["none", "uniform", "normal", "truncated normal"],
)
def test_drawn_values_have_the_moments_of_their_distribution(initializer, mean, deviation, limits):
    drawn = rows(np.arange(4000), initializer)
    # Five standard errors of 20,000 values.
    assert abs(drawn.mean() - mean) < 5 * deviation / 20_000**0.5
    assert drawn.std() == pytest.approx(deviation, rel=0.03)
    assert limits[0] <= drawn.min() and drawn.max() <= limits[1]


CONSTANTS = {
    "int": (2, 2.0),
    "float": (0.5, 0.5),
    "numpy's number": (np.float32(0.5), 0.5),
    "numpy's integer": (np.int64(-2), -2.0),
    "zeros": (v1.zeros_initializer(), 0.0),
    "class": (v1.ones_initializer, 1.0),
    "Keras' ones": (tf.keras.initializers.Ones(), 1.0),
    "constant": (v1.constant_initializer(0.25), 0.25),
    "a function": (lambda shape, dtype: tf.fill(shape, tf.constant(7, dtype)), 7.0),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_fills_the_rows(name):
    initializer, value = CONSTANTS[name]
    np.testing.assert_array_equal(rows([4, -4], initializer), np.full([2, DIM], value))


@pytest.mark.parametrize("type_", [np.float32, np.float64, np.int64, tf.float32, tf.float64, tf.float16, tf.int32])
def test_rows_of_a_matrix_are_taken_by_the_keys_remainder(type_):
    table = get_embedding_variable(
        "table", DIM, initializer=tf.cast(MATRIX, type_) if isinstance(type_, tf.DType) else MATRIX.astype(type_)
    )
    np.testing.assert_array_equal(table.sparse_read([0, 1, 2, 3, 301]), MATRIX[[0, 1, 2, 0, 1]])


def test_other_initializers_draw_as_many_rows_as_the_options_say():
    glorot = rows([0, 1, 2, 3, 4], v1.glorot_uniform_initializer(), default_value_dim=3)
    np.testing.assert_array_equal(glorot[3:], glorot[:2])
    assert len(np.unique(glorot[:3])) == 3 * DIM


def test_a_users_subclass_of_a_known_initializer_draws_its_own_values():
    class Zeros(tf.keras.initializers.Zeros):
        def __call__(self, shape, dtype=None, **kwargs):
            return super().__call__(shape, dtype, **kwargs) + 3.0

    np.testing.assert_array_equal(rows([4], Zeros()), np.full([1, DIM], 3.0))


@pytest.mark.parametrize(
    ("initializer", "shape"),
    [(np.zeros(DIM), rf"\({DIM},\)"), (np.zeros([2, DIM + 1]), r"\(2, 6\)"), (tf.constant(1.0), r"\(\)")],
    ids=["vector", "longer rows", "scalar"],
)
def test_a_matrix_of_another_shape_is_refused(initializer, shape):
    with pytest.raises(
        ValueError, match=rf"table 'table': initial rows of shape {shape}, wanted \[number of rows, 5\]"
    ):
        get_embedding_variable("table", DIM, initializer=initializer)


@pytest.mark.parametrize(
    ("initializer", "frequency", "default"),
    [(1.5, 0, 1.5), (1.5, 1, 1.5), (1.5, 2, -7.0), (None, 0, -7.0)],
    ids=["constant", "admitted when first seen", "a filter", "drawn"],
)
def test_the_default_row_is_the_constant_of_all_rows_or_that_of_the_options(initializer, frequency, default):
    start = initial_rows.initial_of(initializer, DIM, "table", 4096)
    attributes = {"default_value": -7.0, "min_frequency": frequency}
    assert initial_rows.default_value(start, attributes) == default
    option = EmbeddingVariableOption(
        init_option=InitializerOption(initializer, default_value_no_permission=-7.0),
        filter_option=CounterFilter(frequency),
    )
    assert get_embedding_variable("table", DIM, ev_option=option).default_value == default
