"""Variables of Keras 3 layers over sharded tables, on one worker.

For two workers see tests/multiprocess/keras/training_test.py.
"""

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3"):
    pytest.skip("the variables are those of Keras 3", allow_module_level=True)

from lockstep._src.keras.hooks import variables  # noqa: E402
from lockstep._src.keras.hooks.variables import RowShardedVariable  # noqa: E402
from lockstep._src.scope import embedding_scope, scope  # noqa: E402

TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)


@pytest.fixture
def layer():
    with embedding_scope():
        layer = keras.layers.Embedding(5, 2)
        layer.build()
        layer.embeddings.assign(TABLE)
        yield layer


def test_a_table_becomes_a_sharded_variable_that_reads_as_a_whole(layer):
    table = layer.embeddings
    assert type(table) is RowShardedVariable and table.shard.rows == 5
    np.testing.assert_array_equal(table.numpy(), TABLE)
    np.testing.assert_array_equal(np.asarray(table, np.float64), TABLE)
    assert table.shape == (5, 2)


def test_other_variables_stay_as_they_are():
    with scope():
        dense = keras.layers.Dense(2)
        dense.build([None, 3])
    assert not isinstance(dense.kernel, RowShardedVariable)
    assert variables.sharded_variables(dense.variables) == []


def test_sharded_variables_are_listed_once(layer):
    bias = keras.Variable(0.0)
    assert variables.sharded_variables([layer.embeddings, bias, layer.embeddings]) == [layer.embeddings]


def test_a_value_of_another_shape_is_refused(layer):
    with pytest.raises(ValueError, match=r"embeddings: got a value of shape \(4, 2\), wanted \(5, 2\)"):
        layer.embeddings.assign(TABLE[:4])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
@pytest.mark.parametrize(
    "ids", [[4, 0, 4], [[0, 1], [2, 3]], [-1, -5], []], ids=["a vector", "a matrix", "from the end", "none"]
)
def test_taken_rows_are_those_of_numpy(layer, ids, compiled):
    ids = np.array(ids, np.int64)
    take = lambda ids: keras.ops.take(layer.embeddings, ids, axis=0)  # noqa: E731
    rows = (tf.function(take) if compiled else take)(tf.constant(ids))
    np.testing.assert_array_equal(rows, np.take(TABLE, ids, axis=0))


def test_ragged_ids_take_ragged_rows(layer):
    rows = keras.ops.take(layer.embeddings, tf.ragged.constant([[1, -1], [], [2]], dtype=tf.int64), axis=0)
    assert rows.to_list() == [TABLE[[1, 4]].tolist(), [], TABLE[[2]].tolist()]


def test_slots_of_a_table_are_sharded_like_it(layer):
    optimizer = keras.optimizers.Adam()
    optimizer.build([layer.embeddings])
    slots = variables.sharded_variables(optimizer.variables)
    assert len(slots) == 2
    assert all(slot.shard is layer.embeddings.shard and slot.numpy().shape == (5, 2) for slot in slots)


def test_worker_0_reads_whole_tables_inside_the_block_only(layer):
    table = layer.embeddings
    with variables.whole_on_chief([table]):
        layer.embeddings._value.assign(TABLE + 1)
        np.testing.assert_array_equal(table.numpy(), TABLE)
        np.testing.assert_array_equal(tf.convert_to_tensor(table), TABLE)
    np.testing.assert_array_equal(table.numpy(), TABLE + 1)


def test_a_table_that_is_made_while_a_function_is_traced_outlives_it():
    with embedding_scope():
        layer = keras.layers.Embedding(5, 2)
        rows = tf.function(lambda ids: layer(ids))(tf.constant([3]))
        np.testing.assert_array_equal(rows, layer.embeddings.numpy()[[3]])


def test_a_variable_with_a_value_that_is_made_while_a_function_is_traced_outlives_it():
    made = []

    @tf.function
    def make():
        if not made:
            made.append(keras.Variable(np.arange(3.0)))
        return made[0].value

    with scope():
        make()
    np.testing.assert_array_equal(made[0].numpy(), [0, 1, 2])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, True),
        ({"dtype": tf.float16}, True),
        ({"initial_value": np.float64(1)}, True),
        ({"dtype": tf.int64}, False),
        ({"initial_value": np.int32(1)}, False),
        ({"synchronization": tf.VariableSynchronization.ON_READ}, False),
    ],
    ids=["default", "float16", "a float", "int64", "an int", "counters"],
)
def test_floating_point_variables_begin_as_worker_0s(arguments, expected):
    assert variables.initializes_from_worker_0(arguments) == expected
    with variables.local_initial_values():
        assert not variables.initializes_from_worker_0(arguments)
    assert variables.initializes_from_worker_0(arguments) == expected
