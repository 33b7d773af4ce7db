"""The scope's promises, checked by every worker of a job of two."""

import contextlib
import itertools
import tempfile
from unittest import mock

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep._src.collectives import agreement
from lockstep._src.data import sharing
from tests.multiprocess import promises
from tests.multiprocess.on_each_worker import Listener, common_folder, logged, stacked


# Promise (hybridbackend.md): they stay in step (HybridBackend, a wrong result: batch statistics, slots and variables
# without gradient drift apart).
def unseeded_variables_start_identical_in_a_plain_session():
    with tf.Graph().as_default(), hb.scope():
        w = tf.get_variable("w", [64], initializer=tf.random_normal_initializer())
        statistics = tf.get_variable("statistics", [8], trainable=False, initializer=tf.random_normal_initializer())
        everyone = [stacked(v.read_value()) for v in (w, statistics)]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for values in session.run(everyone):
                np.testing.assert_array_equal(*np.split(values, 2))


class Clipping(tf.train.GradientDescentOptimizer):
    """A user's optimizer that clips its base's gradients."""

    def compute_gradients(self, *args, **kwargs):
        return [(tf.clip_by_value(g, -0.5, 0.5), v) for g, v in super().compute_gradients(*args, **kwargs)]


def _step(make_train_op, gradient_by_rank):
    """Returns the value of a variable that starts at 0, after one step with local gradient gradient_by_rank[rank]."""
    with tf.Graph().as_default(), hb.scope():
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        train_op = make_train_op(w * gradient_by_rank[hb.context.rank], w)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            return session.run(w)


def a_subclass_sees_the_mean_before_it_clips():
    # The mean of 3 and -1 is 1, clipped to 0.5. The mean of the clipped gradients would be 0.
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


def _lengths_of_batches(rows, **options):
    """Returns the rows of each run of a session, with batches of 4, and that the session continued after the last."""
    with tf.Graph().as_default(), hb.scope(**options):
        dataset = tf.data.Dataset.range(rows).batch(4).map(lambda i: {"x": i, "y": tf.cast(i, tf.float32)[:, None]})
        batch = tf.data.make_one_shot_iterator(dataset).get_next()
        after = stacked(tf.constant(hb.context.rank))
        seen = []
        with tf.train.MonitoredTrainingSession("") as session:
            while not session.should_stop():
                values = session.run(batch)
                assert values["y"].shape == (len(values["x"]), 1)
                seen.append(len(values["x"]))
            assert session.run(after).tolist() == [0, 1]
            seen.append("after")
    return seen


# Promise (hybridbackend.md): takes part, or ends the data on all (HybridBackend, a hang: a worker without any data).
def data_ends_on_all_workers_together():
    assert _lengths_of_batches(10 + 8 * hb.context.rank) == [[4, 4, 2, "after"], [4, 4, 4, "after"]][hb.context.rank]
    # The first run detects that worker 0 has no batch, and leaves the session's block.
    assert _lengths_of_batches(8 * hb.context.rank) == []


# Promise (hybridbackend.md): takes part, or ends the data on all (HybridBackend, a hang: a worker without any data).
def without_dropping_a_worker_gets_empty_batches_until_all_are_done():
    seen = _lengths_of_batches(4 + 6 * hb.context.rank, data_sync_drop_remainder=False)
    assert seen == [[4, 0, 0, "after"], [4, 4, 2, "after"]][hb.context.rank], seen
    seen = _lengths_of_batches(8 * (1 - hb.context.rank), data_sync_drop_remainder=False)
    assert seen == [[4, 4, "after"], [0, 0, "after"]][hb.context.rank], seen


# Promise (hybridbackend.md): saved, also with the model's checkpoint (HybridBackend: the position in the data cannot be
# saved).
def the_position_of_each_worker_is_saved_with_the_model():
    seen = []
    rows = 100 * hb.context.rank + np.arange(9 + 2 * hb.context.rank)
    with common_folder() as folder:
        for steps in (2, 5):
            with tf.Graph().as_default(), hb.scope(data_sync_drop_remainder=False):
                iterator = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(rows).batch(2))
                position = tf.data.experimental.make_saveable_from_iterator(iterator)
                tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, position)
                train = [iterator.get_next(), tf.assign_add(tf.train.get_or_create_global_step(), 1)]
                with tf.train.MonitoredTrainingSession("", checkpoint_dir=folder) as session:
                    while not session.should_stop() and steps:
                        seen += session.run(train)[0].tolist()
                        steps -= 1
    assert seen == rows.tolist(), seen


def _rows_of(rank):
    """Returns a worker's batches: of 4 and 3 rows on the first, of 2 and 1 on the second."""
    return [np.arange(1.0, n + 1, dtype=np.float32) * (rank + 1) for n in ((4, 3), (2, 1))[rank]]


def _batches():
    rows = _rows_of(hb.context.rank)
    dataset = tf.data.Dataset.from_generator(lambda: iter(rows), tf.float32, [None])
    return tf.data.make_one_shot_iterator(dataset).get_next()


def _run_steps(train_op, fetches, steps=2):
    with tf.train.MonitoredTrainingSession("") as session:
        for _ in range(steps):
            session.run(train_op)
        return session.run(fetches)


# Promise (hybridbackend.md): assigned values are exchanged first (HybridBackend, a wrong result: variables that a
# program assigns from its own batch drift apart).
def what_a_program_assigns_from_its_batch_is_that_of_one_worker():
    with tf.Graph().as_default(), hb.scope():
        tf.train.get_or_create_global_step()
        average = tf.get_variable("average", [], initializer=tf.zeros_initializer(), trainable=False)
        rows = tf.get_variable("rows", [], tf.int64, tf.zeros_initializer(), trainable=False)
        total = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.SUM, use_resource=True)
        weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
        batch = _batches()
        mean = tf.reduce_mean(batch)
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(batch * weight)), [weight])
        with tf.control_dependencies([gradient]):
            step = [
                tf.assign(average, 0.9 * average + 0.1 * mean),
                tf.assign_add(rows, tf.size(batch, out_type=tf.int64)),
                total.assign_add(tf.reduce_sum(batch)),
                weight.assign_sub(0.01 * gradient),
            ]
        got = _run_steps(step, [average, rows, total, weight])
    wanted = [0.0, 0, 0.0, 1.0]
    for parts in zip(_rows_of(0), _rows_of(1), strict=True):
        x = np.concatenate(parts)
        wanted[0] = 0.9 * wanted[0] + 0.1 * x.mean()
        wanted[1] += x.size
        wanted[2] += x.sum()
        wanted[3] -= 0.01 * np.mean(2 * x * x * wanted[3])
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def a_loss_from_a_loop_weighs_by_rows():
    with tf.Graph().as_default(), hb.scope():
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
        batch = _batches()
        loss = tf.while_loop(
            lambda i, _: i < 3, lambda i, sum_: (i + 1, sum_ + tf.reduce_mean(batch * weight)), (tf.constant(0), 0.0)
        )[1]
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
        got = _run_steps(train_op, weight)
    means = [np.concatenate(parts).mean() for parts in zip(_rows_of(0), _rows_of(1), strict=True)]
    np.testing.assert_allclose(got, 1 - 0.01 * 3 * np.sum(means), rtol=1e-5)


def _loss_after_a_step(weight, batch, gradients_of):
    """Returns the loss of a weight after an inner step: `gradients_of` gives the gradient of that step's loss."""
    inner = tf.reduce_mean(tf.square(batch * tf.square(weight) - 1.0))
    adapted = weight - 0.1 * gradients_of(inner)
    return tf.reduce_mean(tf.square(batch * adapted * adapted - 2.0) * batch)


# Promise (hybridbackend.md): a step of meta-learning gives what one worker computes (HybridBackend, a wrong result:
# derivatives of exchanged gradients are averaged without weights, and an empty share gives NaN).
def a_step_of_meta_learning_weighs_by_rows():
    # In the last step worker 1 has no rows.
    shares = [[[0.3, 0.6, 0.9, 0.2], [0.5, 0.1, 0.4], [0.7]], [[0.8, 0.1], [0.9]]]
    with tf.Graph().as_default(), hb.scope(data_sync_drop_remainder=False):
        own = [np.array(part, np.float32) for part in shares[hb.context.rank]]
        batch = tf.data.make_one_shot_iterator(
            tf.data.Dataset.from_generator(lambda: iter(own), tf.float32, [None])
        ).get_next()
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        loss = _loss_after_a_step(weight, batch, lambda inner: optimizer.compute_gradients(inner, [weight])[0][0])
        train_op = optimizer.minimize(loss, step)
        got = []
        with tf.train.MonitoredTrainingSession("") as session:
            for _ in range(3):
                session.run(train_op)
                got.append(session.run(weight))
    with tf.Graph().as_default(), tf.Session() as session:
        batch, weight = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [])
        loss = _loss_after_a_step(weight, batch, lambda inner: tf.gradients(inner, weight)[0])
        (gradient,) = tf.gradients(loss, weight)
        wanted = [1.0]
        for parts in itertools.zip_longest(*shares, fillvalue=[]):
            fed = {batch: np.concatenate(parts), weight: wanted[-1]}
            wanted.append(wanted[-1] - 0.1 * session.run(gradient, fed))
    np.testing.assert_allclose(got, wanted[1:], rtol=1e-5)


def gradients_behind_batch_moments_are_exchanged_however_they_are_applied():
    def trained(lazy):
        with tf.Graph().as_default(), hb.scope(grad_lazy_sync=lazy):
            step = tf.train.get_or_create_global_step()
            weight = tf.get_variable("weight", [], initializer=tf.ones_initializer())
            mean, variance = tf.nn.moments(tf.sin(_batches() * weight), [0])
            loss = tf.square(mean) + variance * tf.reduce_mean(_batches())
            optimizer = tf.train.GradientDescentOptimizer(0.01)
            if lazy is None:
                train_op = optimizer.apply_gradients([(tf.gradients(loss, [weight])[0], weight)], step)
            else:
                train_op = optimizer.minimize(loss, step)
            return _run_steps(train_op, weight, 1)

    got = trained(False)
    np.testing.assert_allclose([trained(True)], got, rtol=1e-6)
    assert len(set(agreement._gather(np.float32(got).tobytes(), "weights")[i : i + 4] for i in (0, 4))) == 1


def training_goes_on_where_its_data_was():
    for make in ("make_one_shot_iterator", "make_initializable_iterator"):
        seen = []
        rows = 100 * hb.context.rank + np.arange(9 + 2 * hb.context.rank)
        with common_folder() as folder:
            for steps in (2, 2, 5):
                with tf.Graph().as_default(), hb.scope(data_sync_drop_remainder=False, save_data_position=True):
                    dataset = tf.data.Dataset.from_tensor_slices(rows).shuffle(4, seed=7).batch(2)
                    iterator = getattr(tf.data, make)(dataset)  # the scope's
                    if make == "make_initializable_iterator":
                        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
                    train = [iterator.get_next(), tf.assign_add(tf.train.get_or_create_global_step(), 1)]
                    with tf.train.MonitoredTrainingSession("", checkpoint_dir=folder) as session:
                        while not session.should_stop() and steps:
                            seen += session.run(train)[0].tolist()
                            steps -= 1
            # Without the option such a checkpoint restores as any other.
            with tf.Graph().as_default(), hb.scope():
                step = tf.train.get_or_create_global_step()
                with tf.train.MonitoredTrainingSession("", checkpoint_dir=folder) as session:
                    assert session.run(step) == 6
        assert sorted(seen) == rows.tolist() and seen != rows.tolist(), seen


def iterators_of_a_structure_or_a_handle_end_on_all_workers_together():
    for kind in ("structure", "handle"):
        with tf.Graph().as_default(), hb.scope():
            dataset = tf.data.Dataset.range(3 + 2 * hb.context.rank)
            types, shapes = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
            feeds = {}
            if kind == "structure":
                iterator = tf.data.Iterator.from_structure(types, shapes)
                start = iterator.make_initializer(dataset)
            else:
                handle = tf.placeholder(tf.string, [])
                iterator = tf.data.Iterator.from_string_handle(handle, types, shapes)
                source = tf.data.make_initializable_iterator(dataset)
                start, source_handle = source.initializer, source.string_handle()
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, start)
            # This waits for its peers, in vain if one has ended.
            total = stacked(iterator.get_next())
            with tf.train.MonitoredTrainingSession("") as session:
                if kind == "handle":
                    feeds[handle] = session.run(source_handle)
                steps = 0
                while not session.should_stop():
                    session.run(total, feeds)
                    steps += 1
        assert steps == 3, (kind, steps)


def an_iterator_from_outside_is_warned_of_by_name():
    with logged("side of scope()") as warnings, tf.Graph().as_default():
        dataset = tf.data.Dataset.range(3)
        outside = [tf.data.make_one_shot_iterator(dataset).get_next(f"outside_{i}") for i in range(2)]
        with hb.scope():
            inside = tf.data.make_one_shot_iterator(dataset).get_next("inside")
            with tf.train.MonitoredTrainingSession("") as session:
                session.run([inside, outside])
    assert len(warnings) == (1 if hb.context.rank == 0 else 0), warnings
    assert all("outside_0, outside_1 were" in text for text in warnings), warnings


def _csv_rows(path):
    """Reads the rows of a file as a program of one worker reads them."""
    return tf.data.TextLineDataset(path).map(lambda line: tf.strings.to_number(tf.strings.split([line], ",").values))


def _trained_on(dataset, scope, steps=None):
    """Trains a number on batches [B, 2]. Returns its value after each step, and the number of warnings."""
    with logged("first batch is the same") as warnings, tf.Graph().as_default(), scope():
        rows = tf.data.make_one_shot_iterator(dataset()).get_next()
        w = tf.get_variable("w", [1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(rows[:, 0] - w * rows[:, 1]))
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, step)
        seen = []
        with tf.train.MonitoredTrainingSession("") as session:
            # This takes no batch, so nothing is compared yet.
            session.run(step)
            while not session.should_stop() and len(seen) != steps:
                session.run(train_op)
                seen.append(float(session.run(w)[0]))
    return seen, len(warnings)


def data_that_are_the_same_for_all_are_warned_of_once_and_shares_train_as_one_worker():
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.csv"
        np.savetxt(path, rng.normal(size=(48, 2)), delimiter=",")
        sharing.warn_of_equal_batches.cache_clear()
        alone, _ = _trained_on(lambda: _csv_rows(path).batch(8), contextlib.nullcontext, steps=6)
        shares = {
            "rows": lambda: _csv_rows(path).apply(hb.data.shard).batch(4),
            "batches": lambda: hb.data.shard(_csv_rows(path).batch(4)),
        }
        for kind, share in shares.items():
            trained, said = _trained_on(share, hb.scope)
            np.testing.assert_allclose(trained, alone, rtol=1e-5, err_msg=kind)
            assert said == 0, kind
        for wanted in (int(hb.context.rank == 0), 0):
            whole, said = _trained_on(lambda: _csv_rows(path).batch(4), hb.scope)
            assert (len(whole), said) == (12, wanted)


def data_that_differ_on_one_worker_are_not_warned_of():
    def same():
        return tf.data.Dataset.range(4).map(lambda i: tf.ones([2])).batch(2)

    datasets = {
        "a worker has none": lambda: same().take(2 * hb.context.rank),
        "shares, which are the same": lambda: same().repeat(2).apply(hb.data.shard),
        "the first ones differ": lambda: same().map(lambda x: x + float(hb.context.rank)).take(1).concatenate(same()),
    }
    sharing.warn_of_equal_batches.cache_clear()
    for kind, dataset in datasets.items():
        _, said = _trained_on(dataset, lambda: hb.scope(data_sync_drop_remainder=False))
        assert said == 0, kind


def what_cannot_be_shared_out_is_refused():
    dataset = tf.data.Dataset.range(8)
    for wrong, error, text in (
        ([1, 2], TypeError, "got list, wanted a tf.data.Dataset"),
        (hb.data.shard(dataset), ValueError, "already a worker's share"),
        (dataset.shard(2, 0).batch(2), ValueError, "already a worker's share"),
        (dataset.shuffle(8).batch(2), ValueError, "shuffled without a seed"),
    ):
        try:
            hb.data.shard(wrong)
        except error as refused:
            assert text in str(refused), refused
        else:
            raise AssertionError(f"{wrong} is not refused")
    for right in (dataset.shuffle(8, seed=1), dataset.shard(1, 0)):
        with tf.Session() as session:
            x = tf.data.make_one_shot_iterator(hb.data.shard(right)).get_next()
            mine = [session.run(x) for _ in range(4)]
            everyones = session.run(stacked(tf.constant(mine)))
        assert np.sort(everyones, axis=None).tolist() == list(range(8)), everyones


# Promise (hybridbackend.md): they are raised on all workers (HybridBackend, a wrong result: errors of the variables'
# broadcast are swallowed).
def errors_of_the_variables_broadcast_end_the_initialization_on_all_workers():
    with tf.Graph().as_default(), hb.scope():
        w = tf.get_variable("w", initializer=np.zeros([2 + hb.context.rank], np.float32))
        with tf.Session() as session:
            try:
                session.run(tf.global_variables_initializer())
            except tf.errors.OpError as error:
                assert "w" in error.message and "rank" in error.message, error.message
            else:
                raise AssertionError(f"shapes differ, and nobody was told: {session.run(w)}")


@contextlib.contextmanager
def _listener_of_the_job():
    """Adds a listener to the job during the block."""
    listener = Listener()
    hb.context.add_saving_listener("noting", listener)
    try:
        yield listener
    finally:
        hb.context._saving_listeners.clear()


def checkpoint_listeners_are_told_on_every_worker():
    with _listener_of_the_job() as listener, tempfile.TemporaryDirectory() as folder:
        train_a_table(5, checkpoint_dir=folder, save_checkpoint_steps=2)
    assert listener.saved == [0, 2, 4, 5], listener.saved


ROWS, DIM = 10, 3


def train_a_table(steps, scope=hb.scope, summary=lambda table: table, make_hooks=lambda summary: {}, **arguments):
    """Runs a number of steps on a sharded table, with a histogram of `summary(table)`.

    The steps change nothing, because a summary may see the values before or after its step.
    """
    with tf.Graph().as_default(), scope():
        with hb.embedding_scope() if scope is hb.scope else contextlib.nullcontext():
            table = tf.get_variable("table", [ROWS, DIM], initializer=tf.constant_initializer(np.arange(ROWS * DIM)))
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, np.arange(ROWS)))
        train_op = tf.train.GradientDescentOptimizer(0.0).minimize(loss, tf.train.get_or_create_global_step())
        arguments.update(make_hooks(tf.summary.histogram("values", summary(table))))
        with tf.train.MonitoredTrainingSession("", **arguments) as session:
            for _ in range(steps):
                session.run(train_op)


def histograms(folder):
    """Returns (step, number of values, their sum) of each histogram in a folder."""
    return [
        (event.step, value.histo.num, value.histo.sum)
        for file in tf.gfile.Glob(f"{folder}/events*")
        for event in tf.train.summary_iterator(file)
        for value in event.summary.value
        if value.tag == "values"
    ]


def summaries_of_a_sharded_table_are_those_of_one_worker_and_written_once():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as plain:
        train_a_table(5, checkpoint_dir=folder, save_summaries_steps=2)
        train_a_table(5, scope=contextlib.nullcontext, checkpoint_dir=plain, save_summaries_steps=2)
        wanted = histograms(plain)
        assert [step for step, _, _ in wanted] == [1, 3, 5] and wanted[0][1] == ROWS * DIM, wanted
        assert histograms(folder) == (wanted if hb.context.rank == 0 else []), histograms(folder)
        assert hb.context.rank == 0 or not tf.gfile.ListDirectory(folder)


def hooks_by_seconds_go_by_the_clock_of_worker_0():
    # The other worker's clock does not move, so it would never trigger an event.
    clock = mock.patch("tensorflow.python.training.basic_session_run_hooks.time.time", return_value=1.0)
    with (
        _listener_of_the_job() as listener,
        tempfile.TemporaryDirectory() as folder,
        clock if hb.context.rank else contextlib.nullcontext(),
    ):
        train_a_table(5, checkpoint_dir=folder, save_summaries_secs=1e-9, save_checkpoint_secs=1e-9)
        steps = [step for step, _, _ in histograms(folder)]
    assert listener.saved == [0, 1, 2, 3, 4, 5], listener.saved
    # A step's end shows whether a summary is due, so every second step takes one.
    assert steps == ([1, 3, 5] if hb.context.rank == 0 else []), steps


def summary_hooks_of_the_program_are_run_the_same_way():
    for argument in ("hooks", "chief_only_hooks"):
        with tempfile.TemporaryDirectory() as folder:

            def hook(summary, argument=argument, folder=folder):
                writer = tf.summary.FileWriter(folder)
                return {argument: [tf.train.SummarySaverHook(1, summary_writer=writer, summary_op=summary)]}

            train_a_table(2, make_hooks=hook)
            steps = [step for step, _, _ in histograms(folder)]
            assert steps == ([1, 2] if hb.context.rank == 0 else []), (argument, steps)


def summaries_without_exchanges_are_computed_by_worker_0_alone():
    computed = []

    def local(table):
        return tf.py_func(lambda: computed.append(1) or np.float32(1), [], tf.float32)

    with tempfile.TemporaryDirectory() as folder:
        train_a_table(2, summary=local, checkpoint_dir=folder, save_summaries_steps=1)
    assert len(computed) == (2 if hb.context.rank == 0 else 0), computed


def _replaced_symbols():
    return (
        tf.train.Optimizer.compute_gradients,
        tf.train.MonitoredTrainingSession,
        tf.train.Saver._build,
        tf.data.make_one_shot_iterator,
        tf.data.Iterator.from_structure,
        tf.variables_initializer,
    )


def everything_is_put_back():
    before = _replaced_symbols()
    try:
        with hb.scope():
            with hb.scope(grad_nbuckets=3):
                assert hb.context.options.grad_nbuckets == 3
            assert tf.train.MonitoredTrainingSession is not before[1]
            raise KeyError
    except KeyError:
        pass
    after = _replaced_symbols()
    assert before == after


if __name__ == "__main__":
    tf.disable_v2_behavior()
    promises.hold(*promises.defined_in("__main__"))
