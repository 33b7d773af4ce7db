"""Promises of hooks and policies of two workers: training ends after the same step on both, and none waits."""

import os
import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep import allgather
from lockstep._src.sessions import stop_together
from tests.multiprocess import promises
from tests.multiprocess.on_each_worker import Stop


def _train(hooks, limit=12, pause_s=0.0, **arguments):
    """Trains with an exchange in each step until the session's end or the limit. Returns the steps of all workers."""
    taken = 0
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            table = tf.get_variable("table", [7, 2], initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(tf.identity(tf.nn.embedding_lookup(table, tf.range(7)), name="rows"))
        # This is an exchange of its own, not a part of a step.
        tf.nn.l2_loss(tf.nn.embedding_lookup(table, [1, 2]), name="lookup_norm")
        train_op = tf.train.GradientDescentOptimizer(-1.0).minimize(loss, tf.train.get_or_create_global_step())
        with tf.train.MonitoredTrainingSession("", hooks=hooks, **arguments) as session:
            while taken < limit and not session.should_stop():
                session.run([train_op, loss])
                taken += 1
                time.sleep(pause_s)
    return _gather_values(taken)


def _gather_values(number):
    with tf.Graph().as_default(), tf.Session() as session:
        return list(map(int, session.run(allgather(tf.constant([number])))))


def _by_rank(*values):
    return values[hb.context.rank]


def stop_of_one_worker_ends_training_after_the_same_step_on_all():
    assert _train([Stop(_by_rank(None, 3))]) == [3, 3]
    assert _train([Stop(_by_rank(5, None))]) == [5, 5]
    assert _train([Stop(_by_rank(4, 2))]) == [2, 2]
    assert _train([Stop(3)]) == [3, 3]


def hook_that_one_worker_alone_has_ends_training_of_all():
    assert _train(_by_rank([], [Stop(2)])) == [2, 2]
    assert _train([], chief_only_hooks=[Stop(3)]) == [3, 3]


def loss_of_one_worker_that_is_nan_ends_training_of_all():
    with tf.Graph().as_default(), hb.scope():
        step = tf.train.get_or_create_global_step()
        loss = tf.where(tf.equal(step, _by_rank(10, 3)), np.nan, 1.0)
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1)
        hook = tf.train.NanTensorHook(loss, fail_on_nan_loss=False)
        taken = 0
        with tf.train.MonitoredTrainingSession("", hooks=[hook]) as session:
            while not session.should_stop():
                session.run(train_op)
                taken += 1
    taken_by_all = _gather_values(taken)
    assert taken_by_all[0] == taken_by_all[1] <= 4


def hooks_that_stop_alike_cost_no_exchange():
    hooks = [tf.train.StopAtStepHook(last_step=3), hb.train.StepStatHook(), hb.train.EvaluationHook(lambda: {})]
    assert stop_together.stop_together(hooks) == hooks
    assert _train(hooks[:2]) == [3, 3]


def early_stopping_follows_worker_0s_results():
    scores = tf.constant
    # Each worker has its own value; worker 1's gets worse at once.
    values = _by_rank([1.0, 2.0, 3.0, 2.0, 1.0], [3.0, 2.0, 1.0, 0.0, 0.0])

    def fn():
        return {"score": (scores(values)[tf.cast(tf.train.get_global_step(), tf.int32) - 1], tf.no_op())}

    hook = hb.train.EvaluationHook(fn, steps=1, every_n_iter=1, policies=[hb.train.EarlyStopping("score")])
    assert _train([hook], limit=5) == [4, 4]


def best_checkpoint_is_saved_by_all_and_opens_in_stock_tensorflow():
    folder = sys.argv[1] + "/best"
    values = [1.0, 3.0, 2.0]

    def fn():
        return {"score": (tf.constant(values)[tf.cast(tf.train.get_global_step(), tf.int32) - 1], tf.no_op())}

    best = hb.train.BestCheckpoint("score", folder)
    _train([hb.train.EvaluationHook(fn, steps=1, every_n_iter=1, policies=[best])], limit=3)
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    np.testing.assert_array_equal(reader.get_tensor("table"), np.full([7, 2], 2.0))
    assert _gather_values(int(os.path.exists(f"{folder}/best.json"))) == [1, 1]


def hooks_that_log_by_seconds_go_by_worker_0s_clock():
    logged = []
    by_clock = tf.train.LoggingTensorHook(["lookup_norm"], every_n_secs=0.05, formatter=lambda _: str(logged.append(1)))
    of_the_chief = tf.train.LoggingTensorHook(["lookup_norm"], every_n_iter=2, formatter=lambda _: logged.append(2))
    # Each step computes the rows anyway, so one worker may log them at any step.
    alone = tf.train.LoggingTensorHook({"rows": "rows:0"}, every_n_secs=0.01)
    others = [tf.train.StepCounterHook(every_n_steps=None, every_n_secs=0.03, output_dir=sys.argv[1])]
    others += [tf.train.ProfilerHook(save_secs=0.03, output_dir=f"{sys.argv[1]}/{hb.context.rank}")]
    others += [tf.train.GlobalStepWaiterHook(5 * hb.context.rank)]
    os.makedirs(f"{sys.argv[1]}/{hb.context.rank}", exist_ok=True)
    taken = _train([by_clock, *_by_rank([alone], []), *others], 8, _by_rank(0.02, 0.0), chief_only_hooks=[of_the_chief])
    assert taken == [8, 8]
    assert logged.count(2) == _by_rank(4, 0)
    calls = _gather_values(logged.count(1))
    assert calls[0] == calls[1] >= 2


class Recorder(hb.train.Policy):
    """A policy that records the steps of its calls, and looks up rows of all workers in each."""

    def __call__(self, global_step, metrics, session, context=None, scaffold=None, writer=None):
        self.steps = [*getattr(self, "steps", []), global_step]
        assert (writer is not None) == (hb.context.is_chief and self.wants_writer)
        assert set(metrics) == {"iter", "rows"}
        session.run(next(iter(self.metrics.values())))
        if global_step == self.stop_at and context is not None:
            context.request_stop()

    stop_at = None
    wants_writer = False


def policies_are_called_after_the_same_steps_on_all_workers():
    lookup = {"rows": "rows:0"}
    by_steps = Recorder(metrics=lookup, every_n_steps=3, at_end=True)
    by_clock = Recorder(metrics=lookup, every_n_secs=0.05)
    for policy in (by_steps, by_clock):
        policy.wants_writer = True
    # One worker is slower, so clocks differ, and both wait for it.
    folder = sys.argv[1] + "/policies"
    taken = _train([by_steps], 8, _by_rank(0.02, 0.0), summary_dir=folder, chief_only_hooks=[by_clock])
    assert taken == [8, 8] and by_steps.steps == [3, 6, 8]
    assert len(by_clock.steps) >= 2
    bits = sum(1 << step for step in by_clock.steps)
    assert len(set(_gather_values(bits))) == 1


def policy_of_one_worker_that_asks_ends_training_of_all():
    policy = Recorder(metrics={"rows": "rows:0"}, every_n_steps=1)
    policy.stop_at = _by_rank(None, 4)
    assert _train([policy]) == [4, 4]


if __name__ == "__main__":
    tf.disable_v2_behavior()
    promises.hold(*promises.defined_in("__main__"))
