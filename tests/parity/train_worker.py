"""One worker of the parity test: trains with every optimizer, sharded and replicated, and writes its weights."""

import contextlib
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from tests.parity import model


def train(optimizer: str, sharded: bool) -> dict[str, np.ndarray]:
    rank, world = hb.context.rank, hb.context.world_size
    share = model.GLOBAL_BATCH // world
    with tf.Graph().as_default(), hb.scope(grad_nbuckets=2):
        features = model.placeholders()
        loss = model.loss(features, hb.embedding_scope if sharded else contextlib.nullcontext)
        train_op = model.OPTIMIZERS[optimizer]().minimize(loss)
        held = {v.op.name: model.held(v) for v in tf.global_variables()}
        with tf.train.MonitoredTrainingSession("") as session:
            for step in range(model.STEPS):
                mine = {k: v[rank * share : (rank + 1) * share] for k, v in model.batch(step).items()}
                session.run(train_op, {features[k]: v for k, v in mine.items()})
            return session.run(held)


def main(out: str) -> None:
    results = {}
    for optimizer in model.OPTIMIZERS:
        for sharded in (False, True):
            for name, value in train(optimizer, sharded).items():
                results[f"{optimizer}/{'sharded' if sharded else 'replicated'}/{name}"] = value
    np.savez(f"{out}.{hb.context.rank}.npz", **results)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    main(sys.argv[1])
