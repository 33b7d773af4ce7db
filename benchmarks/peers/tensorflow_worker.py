"""A worker of `lockstep`, or a process of plain TensorFlow: `plain`, `apart` or `dense`."""

from __future__ import annotations

import tensorflow as tf

import graph
import process

tf1 = tf.compat.v1


def main() -> None:
    job = process.this_job()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    if job.system == "lockstep":
        import hybridbackend.tensorflow as hb

        with tf.Graph().as_default(), hb.scope():
            built = graph.build(job.workload, job.schema, hb.embedding_scope)
            train(job, hb.context.rank, hb.context.world_size, built, threads=1)
        return
    rank, size = process.place()
    with tf.Graph().as_default():
        built = graph.build(job.workload, job.schema, tables=job.system != "dense")
        train(job, rank, size, built, threads=job.workload.workers if job.system == "plain" else 1)


def train(job: process.Job, rank: int, size: int, built: graph.Graph, threads: int) -> None:
    """Trains a graph in a session."""
    train_op = graph.optimizer().minimize(built.loss)
    with tf1.Session(config=graph.config(threads)) as session:
        session.run(tf1.global_variables_initializer())
        process.run(job, rank, size, built.program(session, train_op))


if __name__ == "__main__":
    main()
