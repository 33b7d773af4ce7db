"""Nothing that a program calls before its first operation decides whether TensorFlow 1 runs eagerly."""

import subprocess
import sys

import pytest

DEADLINE_S = 300
PROGRAM = """
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import horovod.tensorflow as hvd

hvd.init()
assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()) == (0, 1, 0, 1)
assert hvd.broadcast_object({'a': 1}) == {'a': 1} and hvd.allgather_object(2) == [2]
optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1))
hook = hvd.BroadcastGlobalVariablesHook(0)

import hybridbackend.tensorflow as hb

assert (hb.context.rank, hb.context.world_size, len(hb.context.devices)) == (0, 1, 1)
hb.context.ensure_initialized()
with hb.scope():
  pass
assert not tf.executing_eagerly()
tf.enable_eager_execution()
assert hvd.allreduce(tf.constant(2.0), op=hvd.Sum).numpy() == 2
assert hvd.broadcast_object('b') == 'b'
hvd.shutdown()
hvd.init()
print('eager')
"""


# Promise (horovod.md): eager execution may be enabled after `init`.
@pytest.mark.timeout(DEADLINE_S + 30)
def test_a_program_may_turn_to_eager_execution_after_init():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.stdout == "eager\n", ended.stderr
