"""Promises of training beyond the scope, checked by every worker of a job of two."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from tests.multiprocess import promises
from tests.multiprocess.on_each_worker import assert_same_on_all, common_folder

ROWS, DIM = 11, 3


def _step(make_optimizer, session=tf.Session):
    """Returns a variable after one step with gradients 3 (worker 0) and -1, and its random initial value; no scope."""
    with tf.Graph().as_default():
        w = tf.get_variable("w", [5], initializer=tf.random_normal_initializer())
        train_op = make_optimizer().minimize(tf.reduce_sum(w) * [3.0, -1.0][hb.context.rank])
        init = tf.global_variables_initializer()
        with session() as sess:
            if session is tf.Session:
                sess.run(init)
            before = sess.run(w)
            sess.run(train_op)
            return before, sess.run(w)


def every_optimizer_trains_without_a_scope():
    arguments = {
        "AdagradDAOptimizer": lambda: (0.1, tf.train.get_or_create_global_step()),
        "MomentumOptimizer": lambda: (0.1, 0.9),
    }
    names = [name for name in dir(hb.train) if name.endswith("Optimizer")]
    assert len(names) == 13, names
    for name in names:
        if name in ("MixedPrecisionLossScaleOptimizer", "SyncReplicasOptimizer"):  # these have promises of their own
            continue
        _, after = _step(lambda name=name: getattr(hb.train, name)(*arguments.get(name, lambda: (0.1,))()))
        assert_same_on_all(after)
    before, after = _step(lambda: hb.train.GradientDescentOptimizer(1.0))
    assert_same_on_all(before)
    np.testing.assert_allclose(after, before - 1, rtol=1e-6)


def a_users_optimizer_is_wrapped_where_it_is_defined():
    @hb.train.wraps_optimizer
    class OldStyle(tf.train.GradientDescentOptimizer):
        def __init__(self, rate):
            super(OldStyle, self).__init__(rate)  # noqa: UP008

    @hb.wraps
    class Clipping(tf.train.GradientDescentOptimizer):
        def compute_gradients(self, *args, **kwargs):
            return [(tf.clip_by_value(g, -0.5, 0.5), v) for g, v in super().compute_gradients(*args, **kwargs)]

    for optimizer, change in ((OldStyle, 1.0), (Clipping, 1.0)):
        before, after = _step(lambda optimizer=optimizer: optimizer(1.0))
        # The class defines compute_gradients itself. Without a scope its base's does not exchange, so clipped gradients
        # are exchanged: 0.5 and -0.5.
        np.testing.assert_allclose(after, before - (0.0 if optimizer is Clipping else change), atol=1e-6)
    assert tf.train.GradientDescentOptimizer.compute_gradients.__module__.startswith("tensorflow")


def a_lazy_optimizer_exchanges_when_it_applies():
    def train(lazy):
        with tf.Graph().as_default(), tf.Session() as session:
            with hb.scope(grad_lazy_sync=lazy):
                w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
                optimizer = tf.train.GradientDescentOptimizer(1.0)
            ((gradient, _),) = optimizer.compute_gradients(w * [3.0, -1.0][hb.context.rank])
            train_op = optimizer.apply_gradients([(tf.clip_by_value(gradient, -0.5, 0.5), w)])
            session.run(w.initializer)
            session.run(train_op)
            return session.run(w)

    # Gradients clipped before the exchange are 0.5 and -0.5; after it, the clipped mean of 1.
    assert (train(True), train(False)) == (0.0, -0.5)


def a_program_of_the_first_generation_trains():
    with common_folder() as folder:
        hooks = [tf.train.StopAtStepHook(num_steps=3)]
        with tf.Graph().as_default():
            with tf.device(hb.train.device_setter()):
                w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
                assert "CPU:0" in w.device, w.device
                loss = w * [3.0, -1.0][hb.context.rank]
                step = tf.train.get_or_create_global_step()
                train_op = hb.train.GradientDescentOptimizer(1.0).minimize(loss, step)
            server = hb.train.Server()
            with hb.train.MonitoredTrainingSession(
                server.target, is_chief=True, checkpoint_dir=folder, hooks=hooks
            ) as session:
                while not session.should_stop():
                    session.run(train_op)
        assert len(hooks) == 1
        assert tf.train.load_variable(folder, "w") == -3.0
        hb.train.Server.get().join()


def sessions_evaluate_by_their_arguments():
    with common_folder() as folder:
        with tf.Graph().as_default(), hb.scope():
            w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
            train_op = tf.train.GradientDescentOptimizer(-1.0).minimize(w + 0.0, tf.train.get_or_create_global_step())

            def evaluate():
                return {"w": (tf.get_variable("w", []).read_value(), tf.no_op())}

            hooks = []
            with tf.train.MonitoredTrainingSession(
                "", hooks=hooks, eval_every_n_iter=2, eval_fn=evaluate, eval_steps=1, checkpoint_dir=folder
            ) as session:
                for _ in range(5):
                    session.run(train_op)
            assert hooks == []
            raised = False
            try:
                tf.train.MonitoredTrainingSession("", eval_every_n_iter=2)
            except ValueError as error:
                raised = "eval_fn is not given" in str(error)
            assert raised
        if hb.context.rank == 0:
            events = [e for f in tf.gfile.Glob(f"{folder}/eval/events*") for e in tf.train.summary_iterator(f)]
            assert [(e.step, v.simple_value) for e in events for v in e.summary.value] == [(2, 2.0), (4, 4.0)]


def options_say_where_and_how_many_checkpoints_are_kept():
    with common_folder() as folder:
        with tf.Graph().as_default(), hb.scope(model_dir=folder, keep_checkpoint_max=2):
            w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
            train_op = tf.train.GradientDescentOptimizer(-1.0).minimize(w + 0.0, tf.train.get_or_create_global_step())
            with tf.train.MonitoredTrainingSession("", save_checkpoint_steps=1) as session:
                for _ in range(5):
                    session.run(train_op)
            assert tf.train.Saver([w], max_to_keep=7)._max_to_keep == 7
        kept = sorted(int(f.split("-")[1].split(".")[0]) for f in os.listdir(folder) if f.endswith(".index"))
        assert kept == [4, 5], kept


# Promise (hybridbackend.md): the path (HybridBackend: `Saver.save` returns None).
def savers_save_for_the_job_without_a_scope():
    with common_folder() as folder:
        values = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
        with tf.Graph().as_default():
            with hb.embedding_scope():
                table = tf.get_variable("table", initializer=values)
            hb.train.replace_default_saver()
            (saver,) = tf.get_collection(tf.GraphKeys.SAVERS)
            with tf.Session() as session:
                session.run(table.initializer)
                path = saver.save(session, os.path.join(folder, "model"))
        np.testing.assert_array_equal(tf.train.load_variable(path, "table"), values)


def a_seed_makes_graphs_inside_repeatable():
    def draw():
        with hb.scope(seed=7), tf.Graph().as_default(), tf.Session() as session:
            return session.run(tf.random.uniform([3])), np.random.rand(3)

    for first, second in zip(draw(), draw(), strict=True):
        np.testing.assert_array_equal(first, second)


# Promise (hybridbackend.md): the mean, as for dense variables; the sum with `embedding_gradient='sum'` (HybridBackend,
# a wrong result: gradients of sharded tables are summed).
def gradients_of_tables_are_sums_where_that_is_asked_for():
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            table = tf.get_variable("table", [ROWS, DIM], initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [2, 3])) * [3.0, 1.0][hb.context.rank]
        for kind, wanted in (("mean", 2.0), ("sum", 4.0)):
            with hb.scope(embedding_gradient=kind), tf.Session() as session:
                # A slice from each worker, for the one row that this worker has.
                gradient = session.run(tf.reduce_sum(tf.gradients(loss, table)[0].values, 0))
                np.testing.assert_allclose(gradient, np.full([DIM], wanted))


def values_travel_in_the_types_of_the_wire():
    value = np.float32(1 + 2**-12)  # float16 has 2**-10, bfloat16 2**-7
    third = {"float16": np.float32(np.float16(value)), "float32": value}
    for wire, gradient_wire in (("float16", "float32"), ("float32", "float16"), ("float16", None), (None, None)):
        with tf.Graph().as_default(), hb.scope(comm_wire_dtype=wire, comm_gradient_wire_dtype=gradient_wire):
            with hb.embedding_scope():
                table = tf.get_variable("table", initializer=np.full([ROWS, DIM], value))
            dense = tf.get_variable("dense", initializer=np.full([DIM], value))
            rows = tf.nn.embedding_lookup(table, [1, 4])
            loss = tf.reduce_sum(rows) * value + tf.reduce_sum(dense) * value
            pairs = tf.train.GradientDescentOptimizer(1.0).compute_gradients(loss)
            exchanged = hb.distribute.alltoall(tf.fill([2], value))
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                forward = third[wire or "float32"]
                backward = third[gradient_wire or wire or "float32"]
                np.testing.assert_array_equal(session.run(rows), np.full([2, DIM], forward))
                np.testing.assert_array_equal(session.run(exchanged), np.full([2], forward))
                for gradient, _ in pairs:
                    # The table's gradient: each worker contributes half, for one of its two rows.
                    is_table = isinstance(gradient, tf.IndexedSlices)
                    got = session.run(tf.reduce_sum(gradient.values, 0) if is_table else gradient)
                    np.testing.assert_array_equal(got, np.full([DIM], backward), err_msg=f"{wire} {gradient_wire}")


def collectives_of_hybridbackend():
    rank = hb.context.rank
    ids = np.random.default_rng(1).integers(-(10**9), 10**9, 1000)
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        value = tf.constant([1.0, 2.0]) * (rank + 1)
        ops = hb.distribute.ops
        wanted = {"SUM": [3, 6], "PROD": [2, 8], "MAX": [2, 4], "MIN": [1, 2], "AVG": [1.5, 3]}
        results = {op: hb.distribute.allreduce(value, reduce_op=getattr(ops, op)) for op in wanted}
        got = session.run(results)
        for op, expected in wanted.items():
            np.testing.assert_allclose(got[op], expected)
        np.testing.assert_allclose(session.run(tf.gradients(results["SUM"], value)[0]), [2, 2])
        np.testing.assert_allclose(session.run(hb.distribute.broadcast(value, root_rank=1)), [2, 4])
        np.testing.assert_allclose(session.run(hb.distribute.allgather(value[: rank + 1])), [1, 2, 4])
        np.testing.assert_allclose(session.run(hb.distribute.allgather(value[0])), [1, 2])
        static = hb.distribute.allgather(value, varying_size=False)
        assert static.shape == [4]
        ids_of = [[1, 2, 3], [4, 5, 6]][rank]
        out = session.run(hb.distribute.alltoall(tf.constant(ids_of), sizes=tf.constant([1, 2])))
        np.testing.assert_array_equal(out[0], [[1, 4], [2, 3, 5, 6]][rank])
        np.testing.assert_array_equal(out[1], [[1, 1], [2, 2]][rank])
        rows = tf.constant(np.arange(6, dtype=np.float32))
        got, sizes = hb.distribute.alltoall(rows, sizes=tf.constant([1, 2]), common_shape=[2])
        assert session.run([tf.shape(got), sizes])[0].tolist() == [2 * (rank + 1), 2]
        even = hb.distribute.alltoall(tf.constant([[1, 2], [3, 4]]) + 10 * rank)
        np.testing.assert_array_equal(session.run(even), [[[1, 2], [11, 12]], [[3, 4], [13, 14]]][rank])
        assert hb.distribute.active_size(hb.distribute.Topology.INTRA_NODE) == 2
        assert hb.distribute.active_size(hb.distribute.Topology.INTER_NODE) == 1
        parts, indices = session.run(hb.distribute.partition(ids, 5))
        for number, (part, index) in enumerate(zip(parts, indices, strict=True)):
            np.testing.assert_array_equal(part, ids[ids % 5 == number])
            np.testing.assert_array_equal(ids[index], part)
        for function, arguments, owner in (
            (hb.distribute.partition_by_modulo, (5,), ids % 5),
            (hb.distribute.partition_by_dual_modulo_stage_one, (4, 3), ids % 12 % 4),
            (hb.distribute.partition_by_dual_modulo_stage_two, (4, 3), ids % 12 // 3),
        ):
            y, sizes, index = session.run(function(ids, *arguments))
            np.testing.assert_array_equal(y, ids[np.argsort(owner, kind="stable")])
            np.testing.assert_array_equal(sizes, np.bincount(owner, minlength=arguments[0]))
            np.testing.assert_array_equal(y[index], ids)
        y, sizes, index = session.run(hb.distribute.partition_by_modulo(np.zeros([0], np.int64), 7))
        assert len(y) == len(index) == 0 and sizes.tolist() == [0] * 7


def objects_of_parameter_servers_and_communicators_are_the_jobs():
    with tf.Graph().as_default():
        w = tf.get_variable("w", [5], initializer=tf.zeros_initializer())
        optimizer = hb.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), replicas_to_aggregate=2)
        loss = tf.reduce_sum(w) * [3.0, -1.0][hb.context.rank]
        train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
        hooks = [optimizer.make_session_run_hook(hb.context.is_chief, num_tokens=0)]
        mine = tf.constant([hb.context.rank + 2.0])
        by_rpc = hb.distribute.RpcCollective(hb.context.devices, hb.context.rank)
        values = [
            hb.distribute.Collective.get().allreduce(mine, hb.distribute.ops.SUM),
            by_rpc.broadcast(lambda: mine, tf.float32, [1], root_rank=1),
            by_rpc.allreduce(mine, "Add", "Div"),
            by_rpc.allreduce(mine, "Mul"),
        ]
        with hb.train.MonitoredTrainingSession(hooks=hooks) as session:
            assert np.ravel(session.run(values)).tolist() == [5.0, 3.0, 2.5, 6.0]
            session.run(train_op)
            np.testing.assert_array_equal(session.run(w), np.full([5], -1.0))


def loss_scales_stay_in_step_with_infinite_gradients_in_one_shard():
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            table = tf.get_variable("table", [ROWS, DIM], initializer=tf.ones_initializer())
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        scale = tf.mixed_precision.DynamicLossScale(initial_loss_scale=4.0, increment_period=100)
        optimizer = hb.train.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), scale)
        factor = tf.placeholder(tf.float32, [])
        # Worker 1 owns row 1, so an infinite gradient of it appears only there.
        loss = w + tf.reduce_sum(tf.nn.embedding_lookup(table, [1])) * factor
        train_op = optimizer.minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train_op, {factor: np.inf})
            assert session.run([w, scale()]) == [1.0, 2.0], session.run([w, scale()])
            session.run(train_op, {factor: 1.0})
            assert session.run([w, scale()]) == [0.5, 2.0]
            np.testing.assert_allclose(session.run(table.read_value())[1], np.full([DIM], 0.5))


def statistics_of_a_batch_are_those_of_all_rows():
    images = np.random.default_rng(8).normal(2, 3, [5, 2, 1, 3]).astype(np.float32)
    mine = images[:3] if hb.context.rank == 0 else images[3:]
    scale, offset = np.float32([1, 2, 3]), np.float32([0, 1, 2])
    wanted = tf.Session(graph=tf.Graph())
    with wanted.graph.as_default(), wanted:
        normalized, mean, variance = wanted.run(tf.nn.fused_batch_norm(images, scale, offset))
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2, 1, 3])
        got = session.run(tf.nn.fused_batch_norm(x, scale, offset), {x: mine})
        own = session.run(tf.nn.moments(x, [1, 2]), {x: mine})  # not over the batch
    np.testing.assert_allclose(got[0], normalized[:3] if hb.context.rank == 0 else normalized[3:], atol=1e-5)
    np.testing.assert_allclose(got[1], mean, rtol=1e-5)
    np.testing.assert_allclose(got[2], variance, rtol=1e-5)
    np.testing.assert_allclose(own[1], mine.var((1, 2)), rtol=1e-4)


def averages_of_what_a_batch_gives_are_the_jobs():
    values = [[1.0, 2.0, 3.0], [10.0]][hb.context.rank]
    with tf.Graph().as_default(), hb.scope():
        dataset = tf.data.Dataset.from_tensor_slices(np.float32(values)).batch(3)
        loss = tf.reduce_mean(tf.data.make_one_shot_iterator(dataset).get_next())
        average = tf.train.ExponentialMovingAverage(0.5)
        update = average.apply([loss])
        with tf.train.MonitoredTrainingSession("") as session:
            session.run(update)
            # Weighted by rows: (1 + 2 + 3 + 10) / 4, and half of it, because the average begins at zero.
            got = session.run_step_fn(lambda step_context: step_context.session.run(average.average(loss)))
    np.testing.assert_allclose(got, 2.0)
    assert_same_on_all(got)


def a_worker_without_rows_raises_no_alarm_and_no_nan():
    rows = [4, 0][hb.context.rank]
    with tf.Graph().as_default(), hb.scope(data_sync_drop_remainder=False):
        dataset = tf.data.Dataset.from_tensor_slices(np.ones([rows, 2], np.float32)).batch(2)
        x = tf.data.make_one_shot_iterator(dataset).get_next()
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(x) * w
        train_op = tf.train.GradientDescentOptimizer(0.25).minimize(loss, tf.train.get_or_create_global_step())
        hooks = [tf.train.NanTensorHook(loss)]
        seen = []
        with tf.train.MonitoredTrainingSession("", hooks=hooks) as session:
            while not session.should_stop():
                seen.append(session.run([loss, train_op])[0])
                final = session.run_step_fn(lambda step_context: step_context.session.run(w))
    assert np.isnan(seen).all() == (hb.context.rank == 1), seen
    assert final == 0.5, final


def several_iterators_end_together():
    counts = [(3, 5), (4, 2)][hb.context.rank]
    # The first iterator that ends, on one worker or on all, ends the data.
    for drop_remainder, wanted in ((True, 2), (False, 4)):
        with tf.Graph().as_default(), hb.scope(data_sync_drop_remainder=drop_remainder):
            datasets = [tf.data.Dataset.from_tensor_slices(np.ones([n, 2], np.float32)).batch(1) for n in counts]
            batches = [tf.data.make_one_shot_iterator(dataset).get_next() for dataset in datasets]
            w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
            loss = tf.add_n([tf.reduce_sum(batch) for batch in batches]) * w
            train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
            steps = 0
            with tf.train.MonitoredTrainingSession("") as session:
                while not session.should_stop():
                    assert np.isfinite(session.run([w, train_op])[0])
                    steps += 1
        assert steps == wanted, (drop_remainder, steps)


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    promises.hold(*promises.defined_in("__main__"))
