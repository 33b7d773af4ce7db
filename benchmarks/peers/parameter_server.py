"""A task of a job with parameter servers, by TF_CONFIG: a server with variables, or a worker with synchronous steps."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

import tensorflow as tf

import graph
import initial
import process

tf1 = tf.compat.v1
LARGE = 10_000  # rows of tables that are divided into parts, one for each server


def main() -> None:
    job = process.this_job()
    settings = json.loads(os.environ["TF_CONFIG"])
    kind, rank = settings["task"]["type"], settings["task"]["index"]
    cluster = tf1.train.ClusterSpec(settings["cluster"])
    server = tf1.train.Server(cluster, kind, rank, config=graph.config(threads=1))
    if kind == "ps":
        server.join()
    work(job, rank, cluster, server.target)


class Variables:
    """A `custom_getter` that divides large tables among the servers, and later loads all initial values."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._made: dict[str, list[tf.Variable]] = {}

    def __call__(self, getter: Callable, name: str, *args: object, **options: object) -> tf.Variable:
        """Makes a variable of zeros, or one that is divided by rows."""
        rows = options["shape"][0] if len(options["shape"]) == 2 else 0
        partitioner = tf1.fixed_size_partitioner(self._servers) if rows >= LARGE and self._servers > 1 else None
        options |= {"initializer": tf1.zeros_initializer(), "partitioner": partitioner}
        variable = getter(name, *args, **options)
        self._made[name] = list(variable) if partitioner else [variable]
        return variable

    def load(self, scaffold: tf1.train.Scaffold, session: tf1.Session) -> None:
        """Sets the values of initial.py, part by part."""
        for name, parts in self._made.items():
            rows = sum(int(part.shape[0]) for part in parts)
            value, first = initial.value(name, (rows, *map(int, parts[0].shape[1:]))), 0
            for part in parts:
                part.load(value[first : first + int(part.shape[0])], session)
                first += int(part.shape[0])


def work(job: process.Job, rank: int, cluster: tf.train.ClusterSpec, target: str) -> None:
    """Trains as a worker. Each step adds the gradients of all workers before the servers apply them."""
    size, own = cluster.num_tasks("worker"), f"/job:worker/task:{rank}"
    variables = Variables(cluster.num_tasks("ps"))
    with tf.Graph().as_default(), tf1.device(tf1.train.replica_device_setter(worker_device=own, cluster=cluster)):
        built = graph.build(job.workload, job.schema, getter=variables)
        step = tf1.train.get_or_create_global_step()
        optimizer = tf1.train.SyncReplicasOptimizer(graph.optimizer(), size, size)
        train_op = optimizer.minimize(built.loss, step)
        # Without tokens to begin with, no gradient is too old: the optimizer would drop it, and a worker would wait for
        # ever.
        hook = optimizer.make_session_run_hook(is_chief=rank == 0, num_tokens=0)
        config = graph.config(threads=1)
        config.device_filters.extend(["/job:ps", own])
        scaffold = tf1.train.Scaffold(init_fn=variables.load)
        # Otherwise the others would look only every 30 seconds whether the variables have their values.
        if rank > 0:
            process.await_file(job, "initialized")
        with tf1.train.MonitoredTrainingSession(
            target, rank == 0, scaffold=scaffold, hooks=[hook], config=config
        ) as session:
            process.tell(job, "initialized" if rank == 0 else f"joined.{rank}", True)
            # A worker that trains by itself takes the tokens of the others, whose gradients are then too old.
            for other in range(1, size):
                process.await_file(job, f"joined.{other}")

            def fed(batch: list) -> dict:
                return dict(zip(built.feeds.values(), batch, strict=True))

            program = process.Program(
                built.prepare,
                lambda batch: session.run([built.loss, train_op], fed(batch))[0],
                lambda batch: session.run(built.scores, fed(batch)),
            )
            process.run(job, rank, size, program)
            # The runner ends the job: another worker may still need this one's queues.
            threading.Event().wait()


if __name__ == "__main__":
    main()
