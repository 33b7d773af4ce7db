"""Tests of feature columns as tensors."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep.keras.layers import dense_features

_tf1 = tf.compat.v1


def test_columns_come_in_the_order_in_which_they_are_asked_for():
    item, price = np.array([5, 22, 5]), np.array([[1.0], [2.0], [3.0]], np.float32)
    identity = tf.feature_column.categorical_column_with_identity("item", 23)
    columns = [tf.feature_column.numeric_column("price"), tf.feature_column.embedding_column(identity, 4)]
    with tf.Graph().as_default(), _tf1.Session() as session:
        prices, vectors = dense_features({"item": tf.constant(item), "price": tf.constant(price)}, columns)
        (table,) = _tf1.trainable_variables()
        session.run(_tf1.global_variables_initializer())
        prices, vectors, table = session.run([prices, vectors, table])
    np.testing.assert_array_equal(prices, price)
    np.testing.assert_allclose(vectors, table[item], rtol=1e-6)


def test_an_eager_program_is_told_to_make_a_graph():
    with pytest.raises(RuntimeError, match="wanted a graph"):
        dense_features({}, [])
