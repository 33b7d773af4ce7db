"""One worker of the checkpoint test: trains a little and saves, or restores and writes its values.

Usage: checkpoint_worker save|restore DIR OUT. Checkpoints lie in DIR; a worker's values go to OUT.<rank>.npz.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from tests.parity import model


def main(action: str, directory: str, out: str) -> None:
    rank, world = hb.context.rank, hb.context.world_size
    with hb.scope():
        features = model.placeholders()
        loss = model.loss(features, hb.embedding_scope)
        with hb.embedding_scope():
            # The table has fewer rows than there are workers, so some worker owns none.
            small = model.variable("small_table", (2, 3))
            # TensorFlow reads no slices of this type.
            half = tf.get_variable("half_table", (7, 2), tf.float16, tf.ones_initializer())
        loss += tf.reduce_sum(tf.nn.embedding_lookup(small, tf.constant([0, 1, 0])))
        loss += tf.reduce_sum(tf.cast(tf.nn.embedding_lookup(half, tf.constant([6, 1, 3])), tf.float32))
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=step)
        held = {v.op.name: model.held(v) for v in tf.global_variables()}
        share = model.GLOBAL_BATCH // world
        with tf.train.MonitoredTrainingSession("", checkpoint_dir=directory, save_checkpoint_steps=2) as session:
            if action == "save":
                for i in range(4):
                    mine = {k: v[rank * share : (rank + 1) * share] for k, v in model.batch(i).items()}
                    session.run(train_op, {features[k]: v for k, v in mine.items()})
            values = session.run(held)
    np.savez(f"{out}.{rank}.npz", **values)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    main(*sys.argv[1:])
