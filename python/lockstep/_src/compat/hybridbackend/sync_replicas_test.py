"""`SyncReplicasOptimizer` works without parameter servers, and refuses the features that need them."""

import pytest
import tensorflow as tf

from lockstep._src.compat.hybridbackend.server import monitored_session
from lockstep._src.compat.hybridbackend.sync_replicas import SyncReplicasOptimizer

tf1 = tf.compat.v1


def _trained(optimizer):
    with tf.Graph().as_default():
        w = tf1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
        step = tf1.train.get_or_create_global_step()
        optimizer = optimizer()
        train_op = optimizer.minimize(tf.reduce_sum(w * w), step)
        hooks = []
        if isinstance(optimizer, SyncReplicasOptimizer):
            hooks = [optimizer.make_session_run_hook(True, num_tokens=0)]
            assert optimizer.get_slot_names() == ["momentum"]
            assert optimizer.variables() == [optimizer.get_slot(w, "momentum")]
        with monitored_session(hooks=hooks) as session:
            for _ in range(3):
                session.run(train_op)
            return [*session.run([w, step])[0].tolist(), session.run(step)]


def test_sync_replicas_optimizer_steps_like_its_optimizer():
    def momentum():
        return tf1.train.MomentumOptimizer(0.1, 0.9)

    assert _trained(lambda: SyncReplicasOptimizer(momentum(), replicas_to_aggregate=1)) == _trained(momentum)


def test_what_needs_parameter_servers_is_refused_with_the_reason():
    inner = tf1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(
        NotImplementedError, match="to_aggregate 2 .* wanted 1, the number of workers.*parameter servers"
    ):
        SyncReplicasOptimizer(inner, 2)
    with pytest.raises(NotImplementedError, match="total_num_replicas 3"):
        SyncReplicasOptimizer(inner, 1, 3)
    optimizer = SyncReplicasOptimizer(inner, 1)
    with pytest.raises(NotImplementedError, match="tokens .*parameter servers"):
        optimizer.get_init_tokens_op()
    with pytest.raises(NotImplementedError, match="queue .*parameter servers"):
        optimizer.get_chief_queue_runner()
    with tf.Graph().as_default(), pytest.raises(ValueError, match="global_step is None"):
        optimizer.minimize(tf1.get_variable("w", initializer=1.0) * 2)
