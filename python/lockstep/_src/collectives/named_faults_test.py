"""Tests of named collectives with interrupted joins and programs, forks, and ranks with less data."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.collectives.named_bytes import broadcast_bytes, gather_bytes
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

pytestmark = [
    pytest.mark.workers,
    pytest.mark.newest_only,
]  # faults of the engine, which do not depend on the version of TensorFlow

# Functions that run on workers.


def uneven_data():
    """Checks that unnamed calls are counted alike again once all have joined, eagerly and in sessions."""
    named.open_lane()
    rank, size = context.rank, context.world_size
    for _ in range(3 - rank):
        (got,) = named.allreduce([tf.constant(1.0)])
    if rank == 0:
        assert got.numpy() == 1.0
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank 1 has joined"):
            gather_bytes(b"only rank 0")
        assert named.count("session") == 0
    assert int(named.join()) == 0
    (got,) = named.allreduce([tf.constant(1.0)])
    assert got.numpy() == size
    data = bytes(range(rank + 1))
    assert gather_bytes(data) == [bytes(range(r + 1)) for r in range(size)]
    assert gather_in_session(data) == [bytes(range(r + 1)) for r in range(size)]
    assert broadcast_bytes(data, 1, name="of rank 1") == b"\0\1"
    named.barrier(name="end")
    named.close_lane()


def gather_in_session(data):
    """Gathers bytes as a program of TensorFlow 1 does."""
    return gather_bytes(data, name=f"session.{named.count('session')}")


def await_return():
    """Waits until no rank is in a join any more; while one is, barriers are errors."""
    while True:
        try:
            named.barrier(name="all are back")
            return
        except tf.errors.FailedPreconditionError as error:
            assert "has joined" in error.message
            time.sleep(0.05)


def interrupted_join():
    """Checks that Ctrl-C ends a join, after which the rank takes part again."""
    named.open_lane()
    if context.rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            named.join()
    await_return()
    (got,) = named.allreduce([tf.constant(1.0)])
    assert got.numpy() == 2
    assert int(named.join()) in (0, 1)
    named.close_lane()


def cancelled_join():
    """Checks that the failure of another part of the step ends a join, too."""
    named.open_lane()
    if context.rank == 1:

        @tf.function
        def step():
            with tf.control_dependencies([tf.raw_ops.Assert(condition=tf.constant(False), data=["another error"])]):
                failed = tf.constant(0)
            return named.join() + failed

        with pytest.raises(tf.errors.OpError, match="another error"):
            step()
    await_return()
    (got,) = named.allreduce([tf.constant(1.0)])
    assert got.numpy() == 2
    assert int(named.join()) in (0, 1)
    named.close_lane()


def forks():
    """Checks that a forked child gets an error and takes nothing from its parent."""
    named.open_lane()
    for i in range(3):
        child = os.fork()
        if child == 0:
            try:
                named.allreduce([tf.constant(1.0)])
            except tf.errors.FailedPreconditionError as error:
                named.close_lane()
                os._exit(0 if "a fork of the one" in error.message else 2)
            os._exit(3)
        assert os.waitpid(child, 0)[1] == 0
        (got,) = named.allreduce([tf.constant(1.0)], name=f"x{i}")
        assert got.numpy() == 2
    named.barrier(name="end")
    named.close_lane()


WAITS = """
import sys, threading, time
import tensorflow as tf
from lockstep._src.collectives import named, named_job
if sys.argv[1] == "job":
    named_job.start()
else:
    named.open_lane()
    named.barrier(name="start")
def wait():
    try:
        named.allreduce([tf.ones([3])], name="never")
    except tf.errors.CancelledError:
        pass
if sys.argv[2] != "join":
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.5)
print("waits", flush=True)
if sys.argv[2] == "join":
    named.join()
if sys.argv[2] == "exit":
    sys.exit(3)
time.sleep(600)
"""


def interrupted_program(opened, how):
    """Ends a program while it waits: it ends at once without a crash, and the others get its rank and reason."""
    if context.rank == 1:
        process = subprocess.Popen([sys.executable, "-c", WAITS, opened, how], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"waits\n"
        if how != "exit":
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        code = process.wait(120)
        assert code == 3 if how == "exit" else code in (1, 130, -signal.SIGINT), code
        return
    if opened == "job":
        from lockstep._src.collectives import named_job

        named_job.start()
    else:
        named.open_lane()
        named.barrier(name="start")
    with pytest.raises(tf.errors.InternalError, match="rank 1 .*(left|died)"):
        # A joined rank takes part in sums, but in no other collective.
        while how == "join":
            named.allreduce([tf.constant(1.0)], name="x")
        named.barrier(name="x")
    named.close_lane()


def names_of_each_step():
    """Checks that memory does not grow with the names of eager calls."""
    named.open_lane()

    def calls(part, number):
        for i in range(number):
            named.allreduce([tf.constant(1.0)], name=f"{part}.{i}")
            named.barrier(name=f"{part}.{i}")
            if i % 10 == 0:
                gather_bytes(b"x", name=f"{part}.{i}")
                broadcast_bytes(b"x", name=f"{part}.{i}")

    calls("first", 500)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls("more", 4000)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 8 << 10, grown_kib
    named.close_lane()


@pytest.mark.parametrize("part", [uneven_data, interrupted_join, cancelled_join, forks])
def test_on_workers(part):
    call_workers(part, 2, timeout_s=60)


@pytest.mark.parametrize(
    ("opened", "how"),
    [
        ("job", "exit"),
        pytest.param("job", "interrupt", marks=pytest.mark.long),
        pytest.param("lane", "interrupt", marks=pytest.mark.long),
        ("lane", "join"),
    ],
)
def test_programs_that_end_while_they_wait(opened, how):
    call_workers(interrupted_program, 2, opened, how, timeout_s=90)


def test_names_of_each_step_cost_no_memory():
    call_workers(names_of_each_step, 1, timeout_s=100)
