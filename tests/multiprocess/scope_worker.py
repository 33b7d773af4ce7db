"""What the scope promises, checked by every worker of a job of two."""

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from tests.multiprocess import promises


def unseeded_variables_start_identical_in_a_plain_session():
    with tf.Graph().as_default(), hb.scope():
        w = tf.get_variable("w", [64], initializer=tf.random_normal_initializer())
        statistics = tf.get_variable("statistics", [8], trainable=False, initializer=tf.random_normal_initializer())
        everyone = [_allgather(v.read_value()) for v in (w, statistics)]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for values in session.run(everyone):
                np.testing.assert_array_equal(*np.split(values, 2))


def _allgather(tensor):
    import lockstep

    return lockstep.allgather(tensor[tf.newaxis])


class Clipping(tf.train.GradientDescentOptimizer):
    """A user's optimizer that clips what its base computed."""

    def compute_gradients(self, *args, **kwargs):
        return [(tf.clip_by_value(g, -0.5, 0.5), v) for g, v in super().compute_gradients(*args, **kwargs)]


def _step(make_train_op, gradient_by_rank):
    """The value of a variable that starts at 0 after one step whose local gradient is gradient_by_rank[rank]."""
    with tf.Graph().as_default(), hb.scope():
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        train_op = make_train_op(w * gradient_by_rank[hb.context.rank], w)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            return session.run(w)


def a_subclass_sees_the_mean_before_it_clips():
    # The mean of 3 and -1 is 1, clipped 0.5; the mean of the clipped would be 0.
    assert _step(lambda loss, w: Clipping(1.0).minimize(loss), [3.0, -1.0]) == -0.5


def a_class_defined_inside_the_scope_is_covered():
    def train(loss, w):
        class Own(tf.train.GradientDescentOptimizer):
            def compute_gradients(self, loss, var_list=None, **kwargs):
                return [(tf.gradients(loss, v)[0], v) for v in tf.trainable_variables()]

        return Own(1.0).minimize(loss)

    assert _step(train, [3.0, -1.0]) == -1.0


def gradients_from_elsewhere_are_exchanged_when_applied():
    def train(loss, w):
        return tf.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.gradients(loss, w)[0], w)])

    assert _step(train, [3.0, -1.0]) == -1.0


def compute_then_clip_then_apply_exchanges_once():
    def train(loss, w):
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        ((g, v),) = optimizer.compute_gradients(loss)
        return optimizer.apply_gradients([(tf.clip_by_norm(g * 2.0, 100.0), v)])

    assert _step(train, [3.0, -1.0]) == -2.0


def an_optimizer_made_in_the_scope_exchanges_after_it():
    with tf.Graph().as_default():
        with hb.scope():
            w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
            optimizer = tf.train.GradientDescentOptimizer(1.0)
            init = tf.global_variables_initializer()
        train_op = optimizer.minimize(w * [3.0, -1.0][hb.context.rank])
        with tf.Session() as session:
            session.run(init)
            session.run(train_op)
            assert session.run(w) == -1.0


def data_ends_on_all_workers_together():
    batches = 3 + 2 * hb.context.rank
    with tf.Graph().as_default(), hb.scope():
        dataset = tf.data.Dataset.range(batches)
        x = tf.data.make_one_shot_iterator(dataset).get_next()
        total = _allgather(x)
        with tf.train.MonitoredTrainingSession("") as session:
            steps = 0
            while not session.should_stop():
                session.run(total)
                steps += 1
    assert steps == 3, steps


def without_dropping_a_worker_gets_empty_batches_until_all_are_done():
    rows = 4 + 6 * hb.context.rank
    with tf.Graph().as_default(), hb.scope(data_sync_drop_remainder=False):
        dataset = tf.data.Dataset.range(rows).batch(4).map(lambda i: {"x": i, "y": tf.cast(i, tf.float32)[:, None]})
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        seen = []
        with tf.train.MonitoredTrainingSession("") as session:
            while not session.should_stop():
                values = session.run(batch)
                assert values["y"].shape == (len(values["x"]), 1)
                seen.append(len(values["x"]))
    assert seen == ([4, 0, 0] if hb.context.rank == 0 else [4, 4, 2]), seen


def everything_is_put_back():
    before = (
        tf.train.Optimizer.compute_gradients,
        tf.train.MonitoredTrainingSession,
        tf.train.Saver._build,
        tf.data.make_one_shot_iterator,
        tf.variables_initializer,
    )
    try:
        with hb.scope():
            with hb.scope(grad_nbuckets=3):
                assert hb.context.options.grad_nbuckets == 3
            assert tf.train.MonitoredTrainingSession is not before[1]
            raise KeyError
    except KeyError:
        pass
    after = (
        tf.train.Optimizer.compute_gradients,
        tf.train.MonitoredTrainingSession,
        tf.train.Saver._build,
        tf.data.make_one_shot_iterator,
        tf.variables_initializer,
    )
    assert before == after


if __name__ == "__main__":
    tf.disable_v2_behavior()
    promises.hold(*promises.defined_in("__main__"))
