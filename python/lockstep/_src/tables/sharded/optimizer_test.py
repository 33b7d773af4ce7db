"""Tests that optimizers train a sharded table like a plain one: same rows and slots, with fused updates or without."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception
from lockstep._src.tables.sharded import shard_of
from lockstep._src.tables.sharded.table_test import ids, plain_table, sharded_table
from lockstep._src.tables.updates import intercept_updates
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

train = tf.compat.v1.train
OPTIMIZERS = {
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.3),
    "Momentum": lambda: train.MomentumOptimizer(0.2, 0.9),
    "Nesterov": lambda: train.MomentumOptimizer(0.2, 0.9, use_nesterov=True),
    "Adagrad": lambda: train.AdagradOptimizer(0.3),
    "AdagradDA": lambda: train.AdagradDAOptimizer(0.3, train.get_or_create_global_step()),
    "Adadelta": lambda: train.AdadeltaOptimizer(0.5),
    "Adam": lambda: train.AdamOptimizer(0.05),
    "Ftrl": lambda: train.FtrlOptimizer(0.3, l1_regularization_strength=0.01, l2_regularization_strength=0.01),
    "ProximalAdagrad": lambda: train.ProximalAdagradOptimizer(0.3, l1_regularization_strength=0.01),
    "ProximalGradientDescent": lambda: train.ProximalGradientDescentOptimizer(0.3),
    "RMSProp": lambda: train.RMSPropOptimizer(0.05, momentum=0.5),
    "centered RMSProp": lambda: train.RMSPropOptimizer(0.05, centered=True),
}
STEPS = 3


def trained(make_optimizer, make_table, ranks):
    """Returns this process's part of all variables, by name, after some steps on the ids of `ranks`."""
    with tf.Graph().as_default():
        table = make_table()
        step_ids = [tf.compat.v1.placeholder(tf.int64, [None]) for _ in ranks]
        losses = [tf.reduce_sum(tf.sin(tf.nn.embedding_lookup(table, i))) for i in step_ids]
        loss = tf.add_n(losses) / len(losses)
        train_op = make_optimizer().minimize(loss)
        held = {}
        for v in tf.compat.v1.global_variables():
            value = tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype)
            held[v.op.name] = value
            if context.world_size > 1 and v.shape.rank:
                assert shard_of(v) == table.shard, f"{v.name} is not known as a shard"
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for step in range(STEPS):
                session.run(train_op, {p: ids(7 * step + r, [6]) for p, r in zip(step_ids, ranks, strict=True)})
            return session.run(held)


def train_on_worker():
    context.ensure_initialized()
    results = {(name, False): trained(make, sharded_table, [context.rank]) for name, make in OPTIMIZERS.items()}
    intercept_updates(Interception(symbols.SCOPE))  # until this process ends
    return results | {(name, True): trained(make, sharded_table, [context.rank]) for name, make in OPTIMIZERS.items()}


@functools.cache
def on_workers(workers):
    return call_workers(train_on_worker, workers, timeout_s=180)


@pytest.mark.pairwise
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("fused", [False, True])
def test_rows_and_slots_are_those_of_plain_tensorflow(fused, workers, name):
    expected = trained(OPTIMIZERS[name], plain_table, range(workers))
    for rank, results in enumerate(on_workers(workers)):
        assert results[name, fused].keys() == expected.keys()
        for variable, value in expected.items():
            own = value[rank::workers] if value.ndim else value
            np.testing.assert_allclose(results[name, fused][variable], own, rtol=1e-5, atol=1e-6, err_msg=variable)
