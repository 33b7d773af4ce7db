"""The process of crash_moments_test.py: makes jobs that save checkpoint after checkpoint, and kills their workers."""

import contextlib
import ctypes
import os
import random
import signal
import time
import traceback

import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src import embedding
from lockstep._src.saving import tables
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep.testing.workers import worker_variables

KEYS, DIM = 1500, 4
_DIES_WITH_ITS_PARENT = 1  # PR_SET_PDEATHSIG
# What is killed by turns: (workers of the job, those of them that are killed, whether it saves increments).
KINDS = [
    (1, (0,), False),
    (2, (0, 1), False),
    (2, (0,), True),
    (1, (0,), True),
    (2, (1,), False),
    (2, (0, 1), True),
    (2, (0,), False),
    (2, (1,), True),
]


def build(incremental):
    """A dynamic table, a static and a replicated variable, a step that adds 1 to all of them, and a saver."""
    option = embedding.EmbeddingVariableOption(record_frequency=True, record_version=True)
    table = embedding.get_embedding_variable("keys", DIM, initializer=tf.zeros_initializer(), ev_option=option)
    with hb.embedding_scope():
        static = tf.get_variable("static", [KEYS, DIM], initializer=tf.zeros_initializer(), use_resource=True)
    dense = tf.get_variable("dense", [KEYS], initializer=tf.zeros_initializer(), use_resource=True)
    ids = tf.range(KEYS, dtype=tf.int64)
    rows = [tf.reduce_sum(tf.nn.embedding_lookup(params, ids)) for params in (table, static)]
    optimizer = tf.train.MomentumOptimizer(-1.0, 0.0)  # its slot is the gradient: 1
    step = optimizer.minimize(sum(rows) + tf.reduce_sum(dense), var_list=[table, static, dense])
    saver = tf.train.Saver(max_to_keep=3)
    return table, static, dense, step, IncrementalSaver(saver, full_every=4) if incremental else saver


def _save_for_ever(folder, incremental, report):
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        *_, step, saver = build(incremental)
        session.run(tf.global_variables_initializer())
        for i in range(1, 10_000):
            session.run(step)
            _tell(report, f"begins {i}")
            saver.save(session, f"{folder}/model.ckpt", i)
            _tell(report, f"done {i}")


def _tell(report, line):
    if hb.context.rank == 0:
        os.write(report, f"{line}\n".encode())


def _start(variables, *arguments):
    """A worker, by a fork: this process has no graph and no session, and so no threads of TensorFlow's."""
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(_DIES_WITH_ITS_PARENT, signal.SIGKILL)
            os.environ.update(variables)
            _save_for_ever(*arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _await(pid, seconds):
    """How a process ended; one that has not in time is killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"process {pid} hangs after another worker has been killed")


def _kill_one(folder, kind, rng):
    """Starts a job, and kills some of its workers in the midst of a save; the last step whose save was done."""
    size, killed, incremental = kind
    os.makedirs(folder)
    heard, report = os.pipe()
    pids = [_start(variables, folder, incremental, report) for variables in worker_variables(size)]
    os.close(report)
    try:
        with os.fdopen(heard) as reports:
            lines = []
            for _ in range(rng.randint(1, 4 if incremental else 1)):
                lines.append(reports.readline())
                began = time.monotonic()
                lines.append(reports.readline())
                save_s = time.monotonic() - began
            lines.append(reports.readline())
            time.sleep(1.2 * rng.random() * save_s)
            for rank in killed:
                os.kill(pids[rank], signal.SIGKILL)
            statuses = [_await(pid, 30) for pid in pids]
            lines += reports.readlines()
    except BaseException:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise
    assert all(statuses[rank] == signal.SIGKILL for rank in killed), statuses
    return max(int(step) for event, step in map(str.split, lines) if event == "done")


def work(folder, moments, seed):
    """Kills `moments` jobs, each after a time that the seed gives, which save to `folder`/0, `folder`/1, ...

    Returns:
      Of each the last step whose save was done.
    """
    tf.disable_v2_behavior()
    tables.PART_ROWS = 16
    rng = random.Random(seed)
    return [_kill_one(f"{folder}/{moment}", KINDS[moment % len(KINDS)], rng) for moment in range(moments)]
