"""A scope's promises for programs with sharded tables, checked by every worker of a job of two."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training import moving_averages

import hybridbackend.tensorflow as hb
from tests.multiprocess import promises
from tests.multiprocess.on_each_worker import assert_same_on_all, common_folder

ROWS, DIM, BATCH = 11, 3, 6
IDS = np.random.default_rng(5).integers(0, ROWS, [4, 2, BATCH])
TABLE = np.random.default_rng(6).normal(size=[ROWS, DIM]).astype(np.float32)
WEIGHTS = np.random.default_rng(7).normal(size=[DIM, 1]).astype(np.float32)


def _variables():
    with hb.embedding_scope():
        table = tf.get_variable("table", initializer=TABLE)
    return table, tf.get_variable("weights", initializer=WEIGHTS)


def _loss(table, weights, ids):
    # The ids are distinct, so plain TensorFlow has one slice per row as well.
    distinct, position = tf.unique(ids)
    return tf.reduce_mean(tf.square(tf.matmul(tf.gather(tf.nn.embedding_lookup(table, distinct), position), weights)))


def _trained(make_train_op, plain=False):
    """Returns table and weights after some steps: of this job, or of plain TensorFlow on the data of all workers."""
    with tf.Graph().as_default():
        ids = tf.placeholder(tf.int64, [None])
        if plain:
            table, weights = (
                tf.get_variable("table", initializer=TABLE),
                tf.get_variable("weights", initializer=WEIGHTS),
            )
            train_op = make_train_op(_loss(table, weights, ids))
        else:
            with hb.scope():
                table, weights = _variables()
                train_op = make_train_op(_loss(table, weights, ids))
        init = tf.global_variables_initializer()
        with tf.Session() as session:
            session.run(init)
            for batch in IDS:
                session.run(train_op, {ids: batch.ravel() if plain else batch[hb.context.rank]})
            return session.run([table, weights])


def _assert_as_in_plain_tensorflow(make_train_op):
    got, wanted = _trained(make_train_op), _trained(make_train_op, plain=True)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def a_table_is_initialized_from_a_checkpoint():
    with common_folder() as folder:
        with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
            _variables()
            session.run(tf.global_variables_initializer())
            path = tf.train.Saver().save(session, f"{folder}/model")
        with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
            with tf.variable_scope("copy"), hb.embedding_scope():
                table = tf.get_variable("table", [ROWS, DIM])
                weights = tf.get_variable("weights", [DIM, 1])
            tf.train.init_from_checkpoint(folder, {"/": "copy/"})
            session.run(tf.global_variables_initializer())
            for got, wanted in zip(session.run([table, weights]), [TABLE, WEIGHTS], strict=True):
                np.testing.assert_array_equal(got, wanted)
        with tf.Graph().as_default(), hb.scope():
            with hb.embedding_scope():
                other = tf.get_variable("other", [ROWS + 1, DIM])
            with pytest.raises(ValueError, match="doesn't match"):
                tf.train.init_from_checkpoint(path, {"table": other})


def scatters_take_rows_of_a_gradient_and_no_ids():
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        table, weights = _variables()
        ids = tf.constant([1, 4, 1]) + hb.context.rank
        (gradient,) = tf.gradients(tf.reduce_sum(tf.nn.embedding_lookup(table, ids)), [table])
        for scatter in (tf.scatter_update, tf.scatter_add, tf.scatter_nd_update, tf.scatter_max):
            with pytest.raises(NotImplementedError, match="table 'table.*rows of this worker's shard"):
                scatter(table, [[3]] if "nd" in scatter.__name__ else [3], [[1.0, 2.0, 3.0]])
        with pytest.raises(NotImplementedError, match="scatter_sub takes rows"):
            table.scatter_sub(tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([3])))
        step = tf.scatter_sub(table, gradient.indices, gradient.values)
        also = tf.scatter_update(weights, [0], [[5.0]])  # replicated
        session.run(tf.global_variables_initializer())
        session.run([step, also])
        wanted = TABLE.copy()
        for worker in range(2):
            np.subtract.at(wanted, np.array([1, 4, 1]) + worker, 0.5)
        np.testing.assert_allclose(session.run(table), wanted, rtol=1e-6)
        assert session.run(weights)[0] == 5


# Promise (hybridbackend.md): the norm of all shards (HybridBackend, a wrong result: clipping by the global norm clips
# each worker's shards by their own).
def clipping_by_the_global_norm_is_that_of_one_worker():
    def train(loss):
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 0.3)
        return optimizer.apply_gradients(zip(clipped, variables, strict=True))

    _assert_as_in_plain_tensorflow(train)


def clipping_each_gradient_by_its_norm_is_that_of_one_worker():
    def train(loss):
        optimizer = tf.train.AdagradOptimizer(0.5)
        pairs = optimizer.compute_gradients(loss)
        return optimizer.apply_gradients([(tf.clip_by_norm(g, 0.1), v) for g, v in pairs])

    _assert_as_in_plain_tensorflow(train)


def an_optimizer_that_clips_inside_is_that_of_one_worker():
    class Clipping(tf.train.MomentumOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            gradients, variables = zip(*grads_and_vars, strict=True)
            clipped, _ = tf.clip_by_global_norm(gradients, 0.3)
            return super().apply_gradients(list(zip(clipped, variables, strict=True)), global_step, name)

    _assert_as_in_plain_tensorflow(lambda loss: Clipping(0.5, 0.9).minimize(loss))


def a_row_that_occurs_twice_counts_once_in_the_norm():
    with tf.Graph().as_default(), hb.scope():
        table, _ = _variables()
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([3, 3, hb.context.rank])))
        norm = tf.linalg.global_norm(tf.gradients(loss, [table]))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            # Row 3 has 2 from each worker, rows 0 and 1 have 1 from one: the means are 2, 1/2 and 1/2.
            np.testing.assert_allclose(session.run(norm), np.sqrt(DIM * (4 + 0.25 + 0.25)), rtol=1e-6)


def accumulated_gradients_have_one_mean_taken():
    def train(loss):
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        sums, add = [], []
        for gradient, variable in optimizer.compute_gradients(loss):
            shape = tf.shape(variable.local_value() if hasattr(variable, "local_value") else variable)
            total = tf.Variable(
                lambda shape=shape: tf.zeros(shape), trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES],
                validate_shape=False, use_resource=True,
            )  # fmt: skip
            total.set_shape(variable.shape)
            sums.append((total, variable))
            add.append(total.assign(tf.convert_to_tensor(gradient), read_value=False))
        with tf.control_dependencies(add):
            return optimizer.apply_gradients([(total.read_value(), variable) for total, variable in sums])

    with tf.Graph().as_default(), hb.scope():
        table, weights = _variables()
        train_op = train(tf.reduce_sum(tf.nn.embedding_lookup(table, [4])) + tf.reduce_sum(weights))
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(train_op)
            after, weights_after = session.run([table, weights])
    np.testing.assert_allclose(after[4], TABLE[4] - 0.5, rtol=1e-6)
    np.testing.assert_allclose(weights_after, WEIGHTS - 0.5, rtol=1e-6)


def gradients_that_are_applied_in_a_branch_have_one_mean_taken():
    tf.enable_control_flow_v2()
    try:

        def train(loss):
            optimizer = tf.train.GradientDescentOptimizer(0.5)
            pairs = optimizer.compute_gradients(loss)

            def apply():
                scaled = []
                for g, v in pairs:
                    if isinstance(g, tf.IndexedSlices):
                        scaled.append((tf.IndexedSlices(g.values * 1.0, g.indices, g.dense_shape), v))
                    else:
                        scaled.append((g * 1.0, v))
                with tf.control_dependencies([optimizer.apply_gradients(scaled)]):
                    return tf.constant(True)

            return tf.cond(loss < 1e6, apply, lambda: tf.constant(False))

        _assert_as_in_plain_tensorflow(train)
    finally:
        tf.disable_control_flow_v2()


def variables_start_identical_however_they_are_initialized():
    with tf.Graph().as_default():
        with hb.scope():
            names = ("init after the scope", "own initializer", "monitored session after the scope")
            made = [
                tf.get_variable(n.replace(" ", "_"), [5], initializer=tf.random_normal_initializer()) for n in names
            ]
            value = tf.Variable(np.full([5], hb.context.rank, np.float32), name="a_value")
        init = tf.group(made[0].initializer, made[2].initializer, value.initializer)
        with tf.Session() as session:
            session.run(init)
            session.run(made[1].initializer)
            assert_same_on_all(*session.run([*made, value]))
        with tf.train.MonitoredTrainingSession("") as session:
            assert_same_on_all(*session.run([*made, value]))


def a_graph_that_is_made_inside_the_scope_is_the_jobs():
    with hb.scope(sharding=True), tf.Graph().as_default():
        table = tf.get_variable("table", [ROWS, DIM])
        bias = tf.get_variable("bias", [DIM], initializer=tf.random_normal_initializer())
        assert table.logical_shape == [ROWS, DIM]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert_same_on_all(*session.run([table, bias]))
    with tf.Graph().as_default():
        assert not hasattr(tf.get_variable("table", [ROWS, DIM]), "logical_shape")


def default_names_count_on_through_embedding_scopes():
    columns = [tf.feature_column.embedding_column(tf.feature_column.categorical_column_with_identity("a", ROWS), DIM)]
    with tf.Graph().as_default(), hb.scope():
        for _ in range(2):
            with hb.embedding_scope():
                tf.feature_column.input_layer({"a": tf.constant([[1]], tf.int64)}, columns)
        names = [v.op.name for v in tf.trainable_variables()]
    assert names == [f"input_layer{n}/a_embedding/embedding_weights" for n in ("", "_1")], names


def a_table_is_reused_outside_of_its_embedding_scope():
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            table = tf.get_variable("table", [ROWS, DIM])
        with tf.variable_scope("", reuse=True):
            assert tf.get_variable("table", [ROWS, DIM]) is table


def a_list_of_tables_is_looked_up_by_mod_alone():
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            parts = [tf.get_variable(f"part{i}", initializer=TABLE[i::2]) for i in range(2)]
        rows = tf.nn.embedding_lookup(parts, IDS[0, hb.context.rank])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            np.testing.assert_array_equal(session.run(rows), TABLE[IDS[0, hb.context.rank]])
        refused = "tables part0, part1 are sharded.*partition_strategy='mod', got 'div'"
        for lookup in (
            lambda: tf.nn.embedding_lookup(parts, [1], partition_strategy="div"),
            lambda: tf.compat.v2.nn.embedding_lookup(parts, [1]),
        ):
            with pytest.raises(ValueError, match=refused):
                lookup()


def what_a_table_cannot_do_is_refused_by_name():
    with tf.Graph().as_default():
        with hb.scope():
            table, _ = _variables()
            average = tf.train.ExponentialMovingAverage(0.9)
            with pytest.raises(NotImplementedError, match="table 'table'.*ExponentialMovingAverage"):
                average.apply([table])
        with pytest.raises(RuntimeError, match="table 'table' is sharded.*inside the scope"):
            tf.train.Saver()


def slots_belong_to_the_table_with_the_longest_name():
    with tf.Graph().as_default(), hb.scope():
        with hb.embedding_scope():
            tables = [tf.get_variable(n, [r, 2]) for n, r in (("user", 7), ("user/age", 8))]
        loss = tf.add_n([tf.reduce_sum(tf.nn.embedding_lookup(t, [0])) for t in tables])
        tf.train.AdagradOptimizer(0.1).minimize(loss)
        from lockstep._src.tables import sharded

        rows = {v.op.name: sharded.shard_of(v).rows for v in tf.global_variables()}
    assert rows == {"user": 7, "user/age": 8, "user/Adagrad": 7, "user/age/Adagrad": 8}, rows


def _micro_batch_variables():
    with hb.embedding_scope():
        table = tf.get_variable("table", initializer=TABLE)
    with tf.variable_scope(None, "layer"):
        weights = tf.get_variable("weights", initializer=WEIGHTS)
        average = tf.get_variable("average", initializer=np.zeros(DIM, np.float32), trainable=False)
    return table, weights, average


def _micro_batch_loss(table, weights, average, features):
    """Returns a loss with batch normalization; an operation in the graph's collection updates its average."""
    distinct, position = tf.unique(features["id"])
    x = tf.gather(tf.nn.embedding_lookup(table, distinct), position) * features["x"]
    mean, variance = tf.nn.moments(x, [0])
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, moving_averages.assign_moving_average(average, mean, 0.9, False))
    y = tf.nn.batch_normalization(x, mean, variance, None, None, 1e-1)
    return tf.reduce_mean(tf.square(tf.matmul(y, weights) + tf.reduce_sum(x, 1, keepdims=True)))


def _trained_by_micro_batches(shares, count, batch, drop_remainder=True):
    """Returns this worker's losses, and table, weights and average after an epoch over its share."""
    with tf.Graph().as_default(), hb.scope(data_batch_count=count, data_sync_drop_remainder=drop_remainder):
        dataset = tf.data.Dataset.from_tensor_slices(shares[hb.context.rank]).batch(batch)
        features = tf.data.make_one_shot_iterator(dataset).get_next()

        @hb.pipeline.compute_pipeline()
        def model(features):
            made[:] = _micro_batch_variables()
            return _micro_batch_loss(*made, features)

        made = []
        loss = model(features)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        values = [v.value() for v in made]
        losses = []
        with tf.train.MonitoredTrainingSession("") as session:
            while not session.should_stop():
                losses.append(session.run([loss, train_op])[0])
            return losses, session.run(values)


def _trained_plainly_by_micro_batches(shares, count, batch):
    """Returns the same for one process without a scope, which takes the rows of all workers at once."""
    longest = max(len(share["id"]) for share in shares)
    parts = [
        {name: np.concatenate([share[name][begin : begin + batch] for share in shares]) for name in shares[0]}
        for begin in range(0, longest, batch)
    ]
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.Variable(value) for value in (TABLE, WEIGHTS, np.zeros(DIM, np.float32))]
        session.run(tf.global_variables_initializer())
        for i in range(0, len(parts), count):
            step = parts[i : i + count]
            rows = [len(part["id"]) for part in step]
            means = []
            for part in step:
                with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)[-1:] if means else []):
                    means.append(_micro_batch_loss(*variables, part))
            loss = tf.add_n([n * mean for n, mean in zip(rows, means, strict=True)]) / sum(rows)
            with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)[-1:]):
                session.run(tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=variables[:2]))
        return session.run(variables)


# Promise (hybridbackend.md): the mean over rows; empty ones weigh nothing (HybridBackend, a wrong result: gradients of
# several batches a step are summed, and batch normalization sees empty ones).
def micro_batches_step_as_one_process_does():
    rng = np.random.default_rng(3)
    # With (7, 3), the second step's first batch has rows only on worker 0, and its other batches have no rows.
    for drop_remainder, lengths in ((True, (12, 12)), (False, (7, 3)), (False, (0, 11))):
        shares = [{"x": rng.normal(size=[n, DIM]).astype(np.float32), "id": rng.integers(0, ROWS, n)} for n in lengths]
        losses, values = _trained_by_micro_batches(shares, 3, 2, drop_remainder)
        assert len(losses) == 2, losses
        for value, wanted in zip(values, _trained_plainly_by_micro_batches(shares, 3, 2), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=1e-6, err_msg=f"{lengths} {drop_remainder}")


def eager_programs_are_refused():
    tf.enable_eager_execution()
    try:
        with hb.scope(), pytest.raises(NotImplementedError, match="variable 'w'.*made eagerly.*tf.Graph"):
            tf.Variable(1.0, name="w")
    finally:
        tf.disable_eager_execution()


if __name__ == "__main__":
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
    promises.hold(*promises.defined_in("__main__"))
