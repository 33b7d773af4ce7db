"""Tests of the layers of SOK 1.x on 1, 2 and 3 ranks, against plain TensorFlow on the whole batch in each process.

A launch checks many cases, because it takes seconds. Keys have rows with known values before training.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import (
    any_keras,
    embedding_tables,
    job,
    native_optimizers,
    plugin_adam,
    rows,
    saver,
    version_1,
)
from lockstep._src.compat.sok.any_keras_test import keras_2
from lockstep._src.compat.sok.layers import All2AllDenseEmbedding, DistributedEmbedding
from lockstep._src.compat.sok.tf_embedding import TFDistributedEmbedding
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

BATCH, SLOTS, NNZ, KEYS, DIM, STEPS = 12, 2, 3, 40, 4, 3
TABLE = np.random.default_rng(5).normal(size=[KEYS, DIM]).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and an optimizer of its table.

    Attributes:
      kind: a combiner; or "dense", "dynamic" (one list of keys), "tf" (`TFDistributedEmbedding`).
      hashed: the argument `use_hashtable`.
      optimizer: "SGD" or "Adam" of Keras, with "legacy " for legacy ones; or "plugin".
      keras: 2 or 3.
      key_dtype: the type of keys.
    """

    kind: str
    hashed: bool
    optimizer: str
    keras: int
    key_dtype: str = "int64"

    def __str__(self):
        return f"{self.kind}, {'hashed' if self.hashed else 'indexed'}, {self.optimizer}, Keras {self.keras}"

    @property
    def is_pooled(self):
        return self.kind in ("sum", "mean")


# Several ranks train with the first ones.
CASES = (
    Case("sum", True, "Adam", 3),
    Case("mean", False, "SGD", 3),
    Case("mean", True, "legacy Adam", 2, "uint32"),
    Case("dynamic", False, "Adam", 3, "uint32"),
    Case("dense", True, "plugin", 3),
    Case("tf", False, "SGD", 3),
    Case("sum", False, "legacy SGD", 2),
    Case("dense", True, "Adam", 2),
    Case("dynamic", True, "plugin", 2),
)


# Promise (sok.md): layers of SOK 1.x train as plain TensorFlow on the whole batch.
@pytest.mark.workers
def test_layers_train_as_plain_tensorflow_on_the_whole_batch(monkeypatch):
    alone(monkeypatch, seed=3)
    monkeypatch.setattr(embedding_tables, "_names", {})
    first = first_rows()
    for ranks in (2, 3):
        for found in call_workers(_train_all, ranks, CASES[: 2 * ranks], timeout_s=90):
            np.testing.assert_array_equal(found, first)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layers_train_as_plain_tensorflow_in_one_process(case, monkeypatch):
    alone(monkeypatch)
    _train(case)


def alone(monkeypatch, seed=None):
    monkeypatch.setattr(job, "_tool", "single")
    monkeypatch.setattr(version_1, "_program", version_1._Program(BATCH, seed))


def keras_of(case):
    return keras_2() if case.keras == 2 else tf.keras


def make_layer(case):
    capacity = -(-KEYS // job.num_ranks())
    given = {"use_hashtable": case.hashed, "key_dtype": case.key_dtype, "embedding_initializer": "ones"}
    if case.kind == "tf":
        return TFDistributedEmbedding(KEYS, DIM, TABLE)
    if case.is_pooled:
        return DistributedEmbedding(case.kind, capacity, DIM, SLOTS, NNZ, **given)
    return All2AllDenseEmbedding(capacity, DIM, SLOTS, NNZ, dynamic_input=case.kind == "dynamic", **given)


def batches():
    """Yields for each step keys [BATCH, SLOTS, NNZ], and whether each is there."""
    rng = np.random.default_rng(11)
    for _ in range(STEPS):
        yield rng.integers(0, KEYS, [BATCH, SLOTS, NNZ]), rng.random([BATCH, SLOTS, NNZ]) < 0.7


def fed(case, keys, there):
    """Returns the inputs of a layer for some examples, and the outputs that it should have."""
    wanted = keys.astype(np.float32)[..., None] / KEYS
    if case.is_pooled:
        flat = there.reshape(-1, NNZ)
        # SOK does not read the dense shape.
        inputs = tf.SparseTensor(
            np.argwhere(flat), tf.constant(keys.reshape(-1, NNZ)[flat], case.key_dtype), [1000, 1000]
        )
        return inputs, tf.constant(wanted[:, :, 0])
    if case.kind == "dynamic":
        keys, wanted = keys.reshape(-1), wanted.reshape(-1, 1)
    return tf.constant(keys, case.key_dtype), tf.constant(wanted)


def signature_of(case):
    if case.is_pooled:
        return [tf.SparseTensorSpec([None, None], case.key_dtype), tf.TensorSpec([None, SLOTS, 1])]
    rank = 1 if case.kind == "dynamic" else 3
    return [tf.TensorSpec([None] * rank, case.key_dtype), tf.TensorSpec([None] * rank + [1])]


def loss_of(found, wanted):
    return tf.reduce_sum((found - wanted) ** 2) / BATCH


def make_optimizer(case):
    owner = keras_of(case).optimizers
    name = case.optimizer.removeprefix("legacy ").replace("plugin", "Adam")
    return getattr(owner.legacy if "legacy" in case.optimizer else owner, name)(0.1)


def plain_rows(case):
    """Returns the table after training by plain TensorFlow."""
    table, optimizer = tf.Variable(TABLE), make_optimizer(case)
    for keys, there in batches():
        inputs, wanted = fed(case, keys, there)
        with tf.GradientTape() as tape:
            if case.is_pooled:
                slots = tf.SparseTensor(inputs.indices, tf.cast(inputs.values, tf.int64), [BATCH * SLOTS, NNZ])
                found = tf.nn.safe_embedding_lookup_sparse(table, slots, combiner=case.kind)
                found = tf.reshape(found, [BATCH, SLOTS, DIM])
            else:
                found = tf.gather(table, tf.cast(inputs, tf.int64))
            loss = loss_of(found, wanted)
        # Keras 3 squares slices of one row one by one.
        optimizer.apply_gradients([(tf.convert_to_tensor(tape.gradient(loss, table)), table)])
    return table.numpy()


def trained_rows(case):
    """Returns this rank's keys and rows after training by a layer."""
    layer = make_layer(case)
    table = layer.embedding_weights if case.kind == "tf" else layer.embedding_variable
    if case.kind != "tf":
        assert saver.Saver().load_embedding_values(table, [TABLE[:11], TABLE[11:]]).numpy() == b"OK"
    is_plugin = case.optimizer == "plugin"
    optimizer = plugin_adam.Adam(0.1) if is_plugin else make_optimizer(case)

    @tf.function(input_signature=signature_of(case))
    def step(inputs, wanted):
        with tf.GradientTape() as tape:
            loss = loss_of(layer(inputs), wanted)
        tables, others = version_1.split(list(layer.trainable_variables))
        assert len(tables) == 1
        assert not others
        gradients = tape.gradient(loss, tables)
        assert isinstance(gradients[0], tf.IndexedSlices)
        with contextlib.nullcontext() if is_plugin else native_optimizers.OptimizerScope(tables):
            optimizer.apply_gradients(zip(gradients, tables, strict=True), experimental_aggregate_gradients=False)

    part = BATCH // job.num_ranks()
    mine = slice(part * job.rank(), part * (job.rank() + 1))
    for keys, there in batches():
        step(*fed(case, keys[mine], there[mine]))
    return [tensor.numpy() for tensor in rows.export(table)]


def first_rows():
    """Returns the first rows of some keys in tables of both kinds; they do not depend on the number of ranks."""
    capacity = 12 // job.num_ranks()
    layers = [All2AllDenseEmbedding(capacity, DIM, 1, 1, True, use_hashtable=hashed) for hashed in (True, False)]
    return np.stack([layer(tf.range(12, dtype=tf.int64)).numpy() for layer in layers])


def _train_all(cases):
    rank = context.rank
    with pytest.raises(ValueError, match=r"global_batch_size is \[12, 24.*\] on the ranks, wanted one number"):
        version_1.init(global_batch_size=BATCH * (1 + rank))
    with pytest.raises(ValueError, match="global_batch_size is 1, wanted a multiple of"):
        version_1.init(global_batch_size=1)
    version_1.init(global_batch_size=BATCH, seed=3 + rank)
    assert version_1.seed() == 3
    found = first_rows()
    for case in cases:
        _train(case)
    _train_in_graph(BATCH // job.num_ranks())
    return found


def _train_in_graph(batch):
    """Trains as Horovod's and SOK's documents do in a session, against one process: SGD on a table and a weight."""
    keys = np.random.default_rng(2).integers(0, KEYS, [BATCH, SLOTS, NNZ])
    table, weight = TABLE.copy(), np.ones([DIM], np.float32)
    with tf.Graph().as_default():
        layer, *others = (All2AllDenseEmbedding(KEYS, DIM, SLOTS, NNZ, use_hashtable=h) for h in (True, True, False))
        dense = tf.compat.v1.get_variable("dense", initializer=weight, use_resource=True)
        mine = tf.constant(keys[batch * job.rank() :][:batch])
        loss = tf.reduce_sum(layer(mine, training=True) * dense) / BATCH
        of_others = [tf.reduce_sum(other(mine)) for other in others]
        of_table, of_dense = tf.compat.v1.gradients(loss, [layer.var, dense])
        with tf.control_dependencies([of_table.values, of_dense]), native_optimizers.OptimizerScope([layer.var]):
            pairs = [(of_table, layer.var), (job.allreduce(of_dense, "sum"), dense)]
            step = tf.compat.v1.train.GradientDescentOptimizer(0.5).apply_gradients(pairs)
        of_others = tf.compat.v1.gradients(of_others, [other.var for other in others])
        load, read = saver.Saver().load_embedding_values(layer.var, TABLE), rows.export(layer.var)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(load)
            options, metadata = tf.compat.v1.RunOptions(output_partition_graphs=True), tf.compat.v1.RunMetadata()
            for _ in range(2):
                session.run([step, of_others], options=options, run_metadata=metadata)
                times = np.bincount(keys.reshape(-1), minlength=KEYS)[:, None]
                change = 0.5 * times * weight / BATCH
                weight = weight - 0.5 * (times * table).sum(0) / BATCH
                table = table - change
            (own, found), found_dense = session.run([read, dense])
    exchanges = [node.op for graph in metadata.partition_graphs for node in graph.node]
    for kind in ("LockstepRoute", "LockstepCombine", "LockstepCombineGradient"):
        assert exchanges.count(kind) == 1, "lookups of all layers share an exchange"
    np.testing.assert_allclose(found, table[own], 1e-5, 1e-5)
    np.testing.assert_allclose(found_dense, weight, 1e-5, 1e-5)


def _train(case):
    with any_keras.using(keras_of(case)):
        keys, trained = trained_rows(case)
        wanted = np.arange(job.rank(), KEYS, job.num_ranks())
        # The capacity of an indexed table is a multiple of the number of ranks.
        np.testing.assert_array_equal(keys[: len(wanted)], wanted, str(case))
        np.testing.assert_allclose(trained[: len(wanted)], plain_rows(case)[wanted], 1e-5, 1e-5, str(case))
