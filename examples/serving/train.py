"""Trains the model of this example and saves an increment every few seconds.

lockstep run -n 2 python examples/serving/train.py --checkpoints checkpoints
"""

from __future__ import annotations

import argparse

import tensorflow.compat.v1 as tf

import lockstep
import model


def main() -> None:
    """Trains until the given step."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--checkpoints", required=True, help="folder of checkpoints")
    flags.add_argument("--steps", type=int, default=100_000, help="(%(default)s)")
    flags.add_argument("--increment-seconds", type=float, default=5, help="between two increments (%(default)s)")
    given = flags.parse_args()
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    with tf.Graph().as_default(), lockstep.scope():
        user, item = tf.placeholder(tf.string, [None]), tf.placeholder(tf.int64, [None])
        label = tf.placeholder(tf.float32, [None])
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=model.logits(user, item))
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(losses), global_step=step)
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=given.checkpoints,
            save_checkpoint_secs=3600,
            save_incremental_checkpoint_secs=given.increment_seconds,
            hooks=[tf.train.StopAtStepHook(last_step=given.steps)],
        ) as session:
            at = session.run(step)
            while not session.should_stop():
                batch = model.clicks(at, lockstep.rank())
                session.run(train, dict(zip((user, item, label), batch, strict=True)))
                at += 1


if __name__ == "__main__":
    main()
