"""Tables beside dense layers on a GPU, without soft placement: nothing moves to the CPU by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing.workers import call_workers
from tests.standin import plugin

pytestmark = pytest.mark.workers
tf1 = tf.compat.v1

_ROWS, _DIM, _BATCH, _STEPS = 40, 4, 8, 4
_GPU = "/device:GPU:0"


def _inputs(step: int) -> dict[str, np.ndarray]:
    """Returns the whole batch of a step: an id of each example, two lists of ids, and labels."""
    random = np.random.default_rng(step)
    return {
        "user": random.integers(0, _ROWS, [_BATCH]),
        "item": random.integers(0, _ROWS, [_BATCH, 3]),
        "word": random.integers(0, _ROWS, [_BATCH]),
        "label": random.random([_BATCH, 1], np.float32),
    }


def _initial(name: str) -> np.ndarray:
    return np.random.default_rng(len(name)).normal(size=[_ROWS, _DIM]).astype(np.float32)


def _loss(tables: dict[str, Any], fed: dict[str, Any]) -> tf.Tensor:
    batch = tf.shape(fed["item"], out_type=tf.int64)[0]
    places = tf.stack([tf.repeat(tf.range(batch), 3), tf.tile(tf.range(3, dtype=tf.int64), [batch])], 1)
    items = tf.SparseTensor(places, tf.reshape(fed["item"], [-1]), tf.stack([batch, 3]))
    rows = [
        tf.nn.embedding_lookup(tables["user"], fed["user"]),
        tf1.nn.safe_embedding_lookup_sparse(tables["item"], items, combiner="mean"),
        tf.nn.embedding_lookup(tables["word"], fed["word"]),
    ]
    kernel = tf1.get_variable("kernel", initializer=np.linspace(-1, 1, 3 * _DIM, dtype=np.float32)[:, np.newaxis])
    bias = tf1.get_variable("bias", [1], initializer=tf1.zeros_initializer())
    logits = tf.matmul(tf.tanh(tf.concat(rows, 1)), kernel) + bias
    return tf.reduce_mean(tf.square(logits - fed["label"]))


def _fed(rank: int, ranks: int) -> tuple[dict[str, tf.Tensor], Any]:
    shapes = {name: [_BATCH // ranks, *value.shape[1:]] for name, value in _inputs(0).items()}
    types = {name: tf.float32 if name == "label" else tf.int64 for name in shapes}
    fed = {name: tf1.placeholder(types[name], shape, name) for name, shape in shapes.items()}

    def feeds(step: int) -> dict[tf.Tensor, np.ndarray]:
        return {fed[name]: value[rank::ranks] for name, value in _inputs(step).items()}

    return fed, feeds


def _plain_losses() -> list[float]:
    """Returns the losses of plain TensorFlow on the whole batch, on the CPU."""
    with tf.Graph().as_default():
        fed, feeds = _fed(0, 1)
        tables = {name: tf1.get_variable(name, initializer=_initial(name)) for name in ("user", "item")}
        tables["word"] = tf1.get_variable("word", initializer=np.full([_ROWS, _DIM], 0.25, np.float32))
        loss = _loss(tables, fed)
        train = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return [session.run([loss, train], feeds(step))[0] for step in range(_STEPS)]


def _train_without_soft_placement() -> dict[str, Any]:
    plugin.load()
    import hybridbackend.tensorflow as hb
    import lockstep

    rank, ranks = hb.context.rank, hb.context.world_size
    with tf.Graph().as_default(), hb.scope():
        with tf.device("/gpu:0"):
            fed, feeds = _fed(rank, ranks)
            with hb.embedding_scope():
                tables = {name: tf1.get_variable(name, initializer=_initial(name)) for name in ("user", "item")}
            tables["word"] = lockstep.embedding.get_embedding_variable(
                "word", _DIM, initializer=tf1.constant_initializer(0.25)
            )
            loss = _loss(tables, fed)
            step = tf1.train.get_or_create_global_step()
            train = hb.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        config = tf1.ConfigProto(allow_soft_placement=False)
        losses, metadata = [], tf1.RunMetadata()
        with tf1.train.MonitoredTrainingSession("", config=config) as session:
            for number in range(_STEPS - 1):
                losses.append(session.run([loss, train], feeds(number))[0])
            options = tf1.RunOptions(output_partition_graphs=True)
            before = plugin.work()
            losses.append(session.run([loss, train], feeds(_STEPS - 1), options=options, run_metadata=metadata)[0])
            done = plugin.work() - before
    placed: dict[str, set[str]] = {}
    for graph in metadata.partition_graphs:
        for node in graph.node:
            placed.setdefault(node.op, set()).add(node.device[node.device.index("/device:") :])
    return {"losses": losses, "placed": placed, "work": done, "tables": {n: t.device for n, t in tables.items()}}


@pytest.mark.parametrize("ranks", [1, 2])
def test_trains_tables_beside_a_gpu_without_soft_placement(ranks):
    done = call_workers(_train_without_soft_placement, ranks, timeout_s=120, environment=plugin.environment())
    losses = np.mean([worker["losses"] for worker in done], 0)
    np.testing.assert_allclose(losses, _plain_losses(), rtol=1e-5)
    for worker in done:
        placed = worker["placed"]
        assert set(worker["tables"].values()) == {"/CPU:0"}
        # The fused update, which needs the table's memory, and the dense layers where the program put them.
        assert placed["LockstepSparseUpdate"] == {"/device:CPU:0"}
        assert placed["LockstepReadRows"] == {"/device:CPU:0"}
        assert placed["LockstepDynamicTableResolve"] == {"/device:CPU:0"}
        assert _GPU in placed["MatMul"] and _GPU in placed["Tanh"] and _GPU in placed["ResourceApplyAdagrad"]
        assert worker["work"].launches > 0 and worker["work"].to_device > 0
