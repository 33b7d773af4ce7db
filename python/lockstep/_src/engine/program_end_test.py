"""Tests of the end of a worker's program: what other workers hear of it, and that it comes soon after an error."""

import os
import re
import signal
import subprocess
import sys

import pytest

from lockstep.testing import launching, run_workers

# Only against hangs; without the tested code, the program would end after ten minutes.
_DEADLINE_S = 240

# The interpreter's own part of the end takes ten minutes here; the program's own parts still run.
_SLOW = """
import atexit, sys, threading, time
from lockstep._src.engine import library, program_end
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(600)
slow = Slow()
atexit.register(lambda: print("exit handler", flush=True))
program_end.watch()
program_end.watch()
threading.Thread(target=lambda: (time.sleep(0.5), print("thread", end=", "))).start()
try:
    raise RuntimeError("shown")
except RuntimeError as error:
    sys.excepthook(type(error), error, error.__traceback__)
print("goes on", end=", ")
"""


@pytest.mark.parametrize(
    ("error", "code"), [('ValueError("too bad")', 1), ("KeyboardInterrupt()", -signal.SIGINT)], ids=["error", "SIGINT"]
)
def test_a_program_that_fails_ends_soon_behind_its_threads_and_exit_handlers(error, code):
    program = [sys.executable, "-c", _SLOW + f"raise {error}\n"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    assert done.returncode == code
    assert done.stdout == "goes on, thread, exit handler\n"
    assert "RuntimeError: shown" in done.stderr
    assert error.split("(")[0] in done.stderr


_ORDERED = """
import os, sys
import tensorflow as tf
import lockstep
def exchange():
    lockstep.allreduce(tf.ones([2]), name="x")
"""
_NAMED = """
import os, sys
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
def exchange():
    hvd.allreduce(tf.ones([2]), name="x")
"""
# Rank 1 takes fewer steps.
_STEPS = """
rank = int(os.environ["LOCKSTEP_RANK"])
for _ in range(8 - 3 * rank):
    exchange()
"""
_FAILS = """
if rank == 1:
    raise ValueError("no such column")
"""
_EXITS = """
if rank == 1:
    sys.exit("no such column")
"""
_EXITS_WELL = """
if rank == 1:
    sys.exit(0)
"""


_FINISHED = "it finished its program while others continue. The workers make unequal numbers of steps: "


@pytest.mark.workers
@pytest.mark.parametrize(
    ("exchange", "end", "message"),
    [
        (_ORDERED, "", _FINISHED),
        (_NAMED, _EXITS_WELL, _FINISHED),
        pytest.param(_ORDERED, _EXITS, "its program ended with sys.exit('no such column')", marks=pytest.mark.long),
        pytest.param(_ORDERED, _FAILS, "its program ended with ValueError: no such column", marks=pytest.mark.long),
        (_NAMED, _FAILS, "its program ended with ValueError: no such column"),
    ],
    ids=["ordered-finishes", "named-exits-well", "ordered-exits", "ordered-fails", "named-fails"],
)
def test_others_hear_whether_a_program_has_finished_or_failed(exchange, end, message):
    program = [sys.executable, "-c", exchange + _STEPS + end]
    waiting, gone = run_workers(2, program, timeout_s=_DEADLINE_S, check=False)
    assert gone.exit_code == (1 if end in (_FAILS, _EXITS) else 0), gone.output
    assert waiting.exit_code == 1, waiting.output
    assert re.search("rank 1 left the job.*: " + re.escape(message), waiting.output), waiting.output


# The program is a function of the launcher's process.
_FUNCTION = """
import sys
import lockstep.launch
def work():
    import os
    import tensorflow as tf
    import lockstep
    rank = int(os.environ["LOCKSTEP_RANK"])
    for _ in range(8 - 3 * rank):
        lockstep.allreduce(tf.ones([2]), name="x")
    if rank == 1:
        raise ValueError("no such column")
sys.exit(lockstep.launch.run(work, workers=2))
"""


@pytest.mark.newest_only
def test_others_hear_of_a_function_that_fails():
    done = subprocess.run(
        [sys.executable, "-c", _FUNCTION], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "[1] ValueError: no such column" in done.stderr.splitlines(), done.stderr
    heard = r"\[0\] rank 0: rank 1 left the job.*: its program ended with ValueError: no such column"
    assert re.search(heard, done.stderr), done.stderr


# Rank 1 takes 3 steps, the others 5.
_SESSION = """
import os
import tensorflow.compat.v1 as tf
import lockstep
tf.disable_v2_behavior()
with lockstep.scope():
    weight = tf.get_variable("weight", [2], initializer=tf.ones_initializer())
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weight), global_step=step)
    with tf.train.MonitoredTrainingSession() as session:
        for _ in range(5 - 2 * lockstep.context.rank):
            session.run(train)
"""
_KERAS = """
import keras
import lockstep
with lockstep.scope():
    weight = keras.Variable([1.0, 1.0])
    optimizer = keras.optimizers.SGD(0.1)
    for _ in range(5 - 2 * lockstep.context.rank):
        optimizer.apply([weight * 2], [weight])
"""
_HVD_KERAS = """
import keras
import horovod.keras as hvd
hvd.init()
weight = keras.Variable([1.0, 1.0])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
for _ in range(5 - 2 * hvd.rank()):
    optimizer.apply([weight * 2], [weight])
"""


@pytest.mark.workers
@pytest.mark.newest_only
@pytest.mark.parametrize(
    "program", [_SESSION, _KERAS, pytest.param(_HVD_KERAS, marks=pytest.mark.long)], ids=["session", "keras", "horovod"]
)
def test_others_hear_at_which_step_a_program_has_finished(program):
    waiting, gone = run_workers(2, [sys.executable, "-c", program], timeout_s=_DEADLINE_S, check=False)
    assert gone.exit_code == 0, gone.output
    assert "rank 1 left the job" in waiting.output, waiting.output
    assert "it finished its program at step 3 while others continue." in waiting.output, waiting.output


launch = pytest.fixture(launching.launchers)


@pytest.mark.parametrize(("exchange", "stopped"), [(_ORDERED, 0), (_NAMED, 1)], ids=["ordered", "named"])
def test_a_stopped_worker_ends_the_job_by_its_name(launch, tmp_path, exchange, stopped):
    worker = exchange + launching.RANK + 'exchange()\nopen(f"pid{rank}", "w").write(str(os.getpid()))\n'
    job = launch(*("-n", "2"), worker=worker + "while True: exchange()\n", variables={"LOCKSTEP_STOPPED_TIMEOUT": "1"})
    launching.pids_of(tmp_path, 2, _DEADLINE_S)
    pid = int((tmp_path / f"pid{stopped}").read_text())
    os.kill(pid, signal.SIGSTOP)
    code, _, errors = launching.finish(job, _DEADLINE_S)
    assert code == 1
    assert f"rank {stopped} (process {pid}) has been stopped for 1 s" in "\n".join(errors)
