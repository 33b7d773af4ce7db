"""A worker of Horovod: tables are replicated, and the gradients of their rows are gathered."""

from __future__ import annotations

import tensorflow as tf

import graph
import horovod.tensorflow as hvd
import process

tf1 = tf.compat.v1


def main() -> None:
    job = process.this_job()
    hvd.init()
    with tf.Graph().as_default():
        built = graph.build(job.workload, job.schema)
        train_op = hvd.DistributedOptimizer(graph.optimizer()).minimize(built.loss)
        with tf1.Session(config=graph.config(threads=1)) as session:
            session.run(tf1.global_variables_initializer())
            session.run(hvd.broadcast_global_variables(0))
            process.run(job, hvd.rank(), hvd.size(), built.program(session, train_op))


if __name__ == "__main__":
    main()
