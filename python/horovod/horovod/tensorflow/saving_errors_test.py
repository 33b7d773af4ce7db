"""A save that fails ends a program of Horovod's, on the rank that saves and on the others, which hear why."""

import os
import subprocess
import sys

import pytest

DEADLINE_S = 300
PROGRAM = """
import resource
import sys

import tensorflow.compat.v1 as tf

import horovod.tensorflow as hvd

tf.disable_v2_behavior()
hvd.init()
w = tf.get_variable("w", [20_000], use_resource=True)
optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1))
train_op = optimizer.minimize(tf.reduce_sum(w * w), global_step=tf.train.get_or_create_global_step())
session = tf.train.MonitoredTrainingSession(
    checkpoint_dir=sys.argv[1] if hvd.rank() == 0 else None,
    save_checkpoint_steps=2,
    save_summaries_steps=None,
    hooks=[hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(20)],
)
with session:
    while not session.should_stop():
        if hvd.rank() == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        session.run(train_op)
"""


@pytest.mark.timeout(DEADLINE_S + 30)
def test_both_ranks_fail_and_name_the_file(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    saved = tmp_path / "saved"
    hidden = ("LOCKSTEP_", "HOROVOD_", "CUDA_", "NVIDIA_")
    ended = subprocess.run(
        [sys.executable, "-m", "horovod.runner", "-np", "2", sys.executable, "program.py", str(saved)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(hidden)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == 1, ended.stderr
    path = saved / "model.ckpt-2"
    said = f"ResourceExhaustedError: checkpoint {path} cannot be saved: {path}_temp/part-00000-of-00001.data"
    lines = ended.stderr.splitlines()
    assert any(line.startswith("[0]<stderr>:") and said in line and line.endswith("File too large") for line in lines)
    # All of the others' error, or the line that stands for it.
    assert any("rank 0 left the job: its program ended with " + said in line for line in lines), ended.stderr
    assert "finished its program" not in ended.stderr
