"""Tests that savers of TensorFlow 1 save SOK's variables and their slots as whole tables, for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import sparse_operation_kit as sok
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
VALUES = np.arange(12 * 2, dtype=np.float32).reshape(12, 2)


def build():
    """Builds a step of three tables; returns it, and the keys and rows of this rank."""
    tables = [
        sok.Variable(VALUES, name="by_rows"),
        sok.Variable(VALUES, name="whole", mode=f"localized:{sok.communication.num_ranks() - 1}"),
        sok.DynamicVariable(2, "1", var_type="hbm", name="by_key"),
    ]
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([0, 1, 5, 11], tf.int64), [3, 1])
    found = sok.lookup_sparse(tables, [ids] * 3, combiners=["sum"] * 3)
    loss = tf.add_n([tf.reduce_sum(one) for one in found]) / sok.communication.num_ranks()
    optimizer = sok.OptimizerWrapper(tf1.train.AdagradOptimizer(0.5))
    train_op = optimizer.apply_gradients(zip(tf1.gradients(loss, tables), tables, strict=True))
    return train_op, [sok.export(table) for table in tables]


def run(path, restores):
    """Trains for two steps, with a checkpoint after the first one; or restores it, and makes the second step."""
    sok.init()
    with tf.Graph().as_default(), tf1.Session() as session:
        train_op, exported = build()
        saver = tf1.train.Saver()
        session.run(tf1.global_variables_initializer())
        if restores:
            saver.restore(session, path)
        else:
            session.run(train_op)
            saver.save(session, path)
        session.run(train_op)
        return session.run(exported)


def whole(parts):
    """Returns the rows by table and key, of the exports of all ranks."""
    tables = [{} for _ in range(3)]
    for part in parts:
        for table, (keys, values) in zip(tables, part, strict=True):
            table.update(zip(keys.tolist(), values.tolist(), strict=True))
    return tables


def test_a_checkpoint_restores_on_another_number_of_ranks(tmp_path):
    path = str(tmp_path / "model")
    expected = whole(call_workers(run, 2, path, False, timeout_s=120))
    assert [len(table) for table in expected] == [12, 12, 4]
    for ranks in (1, 2, 3):
        got = whole(call_workers(run, ranks, path, True, timeout_s=120))
        for table, wanted in zip(got, expected, strict=True):
            assert table.keys() == wanted.keys()
            np.testing.assert_allclose([table[key] for key in wanted], list(wanted.values()), rtol=1e-6)
    reader = tf1.train.load_checkpoint(path)
    assert reader.get_variable_to_shape_map()["by_rows/Adagrad"] == [12, 2]
