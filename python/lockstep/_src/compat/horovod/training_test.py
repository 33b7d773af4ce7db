"""Tapes and optimizers of TensorFlow 1 on two workers, against numpy and plain TensorFlow."""

from __future__ import annotations

import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.testing import reported_by_case, run_cases

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
SETS = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]


def mean_of_ranks(of_rank):
    return np.mean([of_rank(r) for r in range(hvd.size())], axis=0)


def evaluated(build, is_eager):
    """Returns the result of `build()`, eagerly or in a function."""
    return tf.nest.map_structure(lambda t: t, (build if is_eager else tf.function(build))())


def dense(gradient):
    return tf.convert_to_tensor(gradient).numpy()


# Tapes: on workers.


def tape_of(*sources, losses=None, **arguments):
    """Returns an exchanging tape and its target: the sum of source * (1 + rank), or the given losses."""
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.add_n([tf.reduce_sum(s) * (1.0 + hvd.rank()) for s in sources]) if losses is None else losses()
    return hvd.DistributedGradientTape(tape, **arguments), loss


def reductions():
    v, u = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    ranks = 1.0 + np.arange(hvd.size())
    wanted = {hvd.Average: ranks.mean(), hvd.Sum: ranks.sum(), hvd.Min: 1.0, hvd.Max: 2.0, hvd.Product: 2.0}
    for op, factor in wanted.items():
        for is_eager in (True, False):

            def gradients(op=op):
                tape, loss = tape_of(v, u, op=op)
                return tape.gradient(loss, [v, u])

            got = evaluated(gradients, is_eager)
            np.testing.assert_allclose(got[0], [factor, factor])
            np.testing.assert_allclose(got[1], factor)
    tape, loss = tape_of(v, u)
    nested = tape.gradient(loss, {"a": v, "b": (u, tf.Variable(0.0))})
    assert nested["b"][1] is None
    np.testing.assert_allclose(nested["b"][0], 1.5)
    np.testing.assert_allclose(tape.gradient(loss, v), [1.5, 1.5])
    np.testing.assert_allclose(tape.gradient(loss, [v, u], None, True)[1], 1.5)
    zeros = tape.gradient(loss, [tf.Variable(0.0)], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zeros[0].numpy() == 0
    with tf.GradientTape() as plain:
        tape = hvd.DistributedGradientTape(plain)
    assert isinstance(tape, tf.GradientTape)
    assert type(tape).__name__ == "GradientTape"
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = v * (1.0 + hvd.rank())
    np.testing.assert_allclose(tape.gradient(loss, v), [1.5, 1.5])


def options_of_tapes():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0), tf.Variable([[4.0]])]
    large = tf.Variable(1.0)
    for arguments in (
        {"groups": 2},
        {"groups": 7},
        {"groups": [[variables[2], variables[0]]]},
        {"gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.bf16},
        {"device_dense": "/cpu:0"},
    ):
        for is_eager in (True, False):

            def gradients(arguments=arguments):
                tape, loss = tape_of(*variables, **arguments)
                return tape.gradient(loss, variables)

            for got, v in zip(evaluated(gradients, is_eager), variables, strict=True):
                np.testing.assert_allclose(got, np.full(v.shape, 1.5))
                assert got.dtype == tf.float32
    with pytest.warns(DeprecationWarning):
        tape, loss = tape_of(large, num_groups=1)
    np.testing.assert_allclose(tape.gradient(loss, large), 1.5)
    tape, loss = tape_of(large, groups=np.int64(2))
    np.testing.assert_allclose(tape.gradient(loss, large), 1.5)
    # 40000 twice is more than float16 has.
    tape, loss = tape_of(losses=lambda: large * 40000, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert np.isinf(tape.gradient(loss, large))
    of_both = [
        (ValueError, {"groups": 0}, "groups"),
        (ValueError, {"groups": "x"}, "groups"),
        (ValueError, {"groups": True}, "groups.*got True"),
        (ValueError, {"groups": [large, large]}, r"groups.*in the list; for one group of all of it, give \[groups\]"),
        (ValueError, {"groups": [["x"]]}, "groups.*got 'x' in a group"),
        (ValueError, {"op": 17}, "op"),
        (ValueError, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        *(
            (ValueError, {"gradient_predivide_factor": factor}, f"gradient_predivide_factor: got {factor!r}, wanted")
            for factor in (0, 0.0, np.nan, np.inf, "2")
        ),
        (TypeError, {"compression": "fp16"}, "compression: got 'fp16', wanted hvd.Compression"),
        (TypeError, {"compression": None}, "compression: got None, wanted hvd.Compression"),
        (TypeError, {"process_set": None}, "process_set: got None, wanted hvd.ProcessSet"),
        (TypeError, {"process_set": 0}, "process_set: got 0, wanted hvd.ProcessSet"),
    ]
    of_optimizers = [
        *((ValueError, {"backward_passes_per_step": n}, "backward_passes_per_step: got") for n in (0, -1, 1.5, "2")),
        *((ValueError, {"op": op}, f"op: got hvd.{n}") for op, n in ((hvd.Min, "Min"), (hvd.Product, "Product"))),
    ]
    for error, wrong, text in of_both:
        with pytest.raises(error, match=text):
            hvd.DistributedGradientTape(tf.GradientTape(), **wrong)
    for make in (tf1.train.GradientDescentOptimizer, tf.keras.optimizers.SGD):
        for error, wrong, text in of_both + of_optimizers:
            with pytest.raises(error, match=text):
                hvd.DistributedOptimizer(make(0.1), **wrong)


def slices():
    table, other = tf.Variable(np.ones([4, 2], np.float32)), tf.Variable(1.0)

    def loss():
        # Rank 0 asks for the rows 0 and 1, rank 1 for 1, 2 and 3, the last twice.
        rows = [0, 1] if hvd.rank() == 0 else [1, 2, 3, 3]
        return tf.reduce_sum(tf.gather(table, rows)) * (1.0 + hvd.rank()) + other

    wanted = np.array([[1.0], [3.0], [2.0], [4.0]]) * np.ones([1, 2])
    for is_eager in (True, False):
        for arguments in ({}, {"sparse_as_dense": True}, {"groups": 1}, {"gradient_predivide_factor": 2.0}):

            def gradients(arguments=arguments, op=hvd.Average):
                tape, value = tape_of(losses=loss, op=op, **arguments)
                return tape.gradient(value, [table, other])

            got = evaluated(gradients, is_eager)
            assert isinstance(got[0], tf.IndexedSlices) != ("sparse_as_dense" in arguments)
            np.testing.assert_allclose(dense(got[0]), wanted / 2)
            np.testing.assert_allclose(got[1], 1.0)
        got = evaluated(functools.partial(gradients, {}, hvd.Sum), is_eager)
        np.testing.assert_allclose(dense(got[0]), wanted)
        np.testing.assert_equal(got[0].indices.numpy(), [0, 1, 1, 2, 3, 3])
    tape, value = tape_of(losses=loss, op=hvd.Max)
    with pytest.raises(NotImplementedError, match="sparse_as_dense"):
        tape.gradient(value, [table, other])


def local_sources():
    own, shared = tf.Variable([1.0]), tf.Variable([1.0])
    rows = tf.Variable(np.ones([2, 1], np.float32))
    for scale, factor in ((True, 0.5), (False, 1.0)):
        tape, loss = tape_of(
            losses=lambda: (1.0 + hvd.rank()) * (own + shared + tf.gather(rows, [0])), scale_local_gradients=scale
        )
        for source in (own, rows):
            tape.register_local_source(source)
        got = tape.gradient(loss, [own, shared, rows])
        np.testing.assert_allclose(got[0], [factor * (1 + hvd.rank())])
        np.testing.assert_allclose(got[1], [1.5])
        np.testing.assert_allclose(dense(got[2]), [[factor * (1 + hvd.rank())], [0]])
        local, others = tape.get_local_and_global_gradients(loss, [own, shared])
        assert [s is v for (s, _), v in zip(local + others, [own, shared], strict=True)] == [True, True]
        np.testing.assert_allclose(local[0][1], [factor * (1 + hvd.rank())])
    # Ranks have other local variables, and one has more of them.
    parts = [tf.Variable([1.0]) for _ in range(1 + hvd.rank())]
    tape, loss = tape_of(*parts, shared)
    for part in parts:
        tape.register_local_source(part)
    np.testing.assert_allclose(tape.gradient(loss, [*parts, shared])[-1], [1.5])


def partial_tapes():
    layer, other = tf.keras.layers.Dense(1, use_bias=False), tf.keras.layers.Dense(1, use_bias=False)
    for wrong in ([layer, 3], 3):
        with pytest.raises(ValueError, match="tf.keras.layers.Layer type"):
            hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=wrong)
    x = tf.constant([[1.0 + hvd.rank()]])
    other(layer(x))
    for dense_layer in (layer, other):
        dense_layer.set_weights([np.array([[1.0]], np.float32)])
    weights = [*layer.trainable_weights, *other.trainable_weights]
    for local_layers, factors in (
        (None, [1.5, 1.5]),
        (layer, [(1 + hvd.rank()) / 2, 1.5]),
        ((layer, other), [(1 + hvd.rank()) / 2, (1 + hvd.rank()) / 2]),
    ):
        with tf.GradientTape() as tape:
            loss = other(layer(x))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=local_layers)
        for got, factor in zip(tape.gradient(loss, weights), factors, strict=True):
            np.testing.assert_allclose(got, [[factor]])


def program_of_the_documents():
    """Runs the program of TensorFlow 2, which calls `variables()` of an optimizer: as one rank with all rows."""
    x, y = np.random.default_rng(5).normal(size=[2, 3, 4, 2]).astype(np.float32)
    weights = [np.ones([2, 2]), np.zeros([2])]
    loss = tf.losses.MeanSquaredError()

    def train(model, opt, rows, wrap):
        @tf.function
        def training_step(images, labels, first_batch):
            with tf.GradientTape() as tape:
                loss_value = loss(labels, model(images, training=True))
            tape = wrap(tape)
            grads = tape.gradient(loss_value, model.trainable_variables)
            opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
            if first_batch:
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(opt.variables(), root_rank=0)

        model.set_weights(weights)
        for batch in range(3):
            training_step(x[batch, rows], y[batch, rows], batch == 0)
        return model.get_weights()

    own = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
    results = []
    for rows, wrap in ((own, hvd.DistributedGradientTape), (slice(None), lambda tape: tape)):
        model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(2,))])
        results.append(train(model, tf.optimizers.Adam(0.1), rows, wrap))
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def process_sets():
    v = tf.Variable(1.0)
    for process_set, member in zip(SETS, range(2), strict=True):
        tape, loss = tape_of(v, process_set=process_set)
        np.testing.assert_allclose(tape.gradient(loss, v), 1.0 + hvd.rank())
        assert process_set.included() == (hvd.rank() == member)
    with pytest.raises(ValueError, match="not in use"):
        tape, loss = tape_of(v, process_set=hvd.ProcessSet([0, 1]))
        tape.gradient(loss, v)


# Optimizers of TensorFlow 1: on workers.


def exchanges_in(graph):
    """Returns how many gradients travel, without the agreements about them."""
    names = [node.name for node in graph.as_graph_def().node if node.op == "LockstepNamedAllReduce"]
    return sum(not name.endswith("variables_with_gradients_which") for name in names)


def monitored_session():
    """Trains as in Horovod's documents; worker 1 begins with other values, and has other data."""
    target = np.array([1.0, -2.0], np.float32)
    with tf.Graph().as_default() as graph:
        w = tf1.get_variable("w", initializer=tf.constant([5.0, 5.0 + hvd.rank()]))
        rows = tf1.get_variable("rows", initializer=tf.constant([[1.0], [2.0], [3.0]]) * (1 + hvd.rank()))
        loss = tf.reduce_sum((1.0 + hvd.rank()) * (w - target) ** 2) + tf.reduce_sum(tf.gather(rows, [hvd.rank()]))
        step = tf1.train.get_or_create_global_step()
        opt = hvd.DistributedOptimizer(tf1.train.AdagradOptimizer(0.1 * hvd.size()))
        train = opt.minimize(loss, global_step=step)
        assert opt.get_slot_names() == ["accumulator"]
        assert opt.get_slot(w, "accumulator") is not None
        assert opt.get_name() == "DistributedAdagradOptimizer"
        assert len(opt.variables()) == 2
        assert exchanges_in(graph) == 1
        hooks = [hvd.BroadcastGlobalVariablesHook(0), tf1.train.StopAtStepHook(num_steps=5)]
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                got, got_rows, steps = session.run([w, rows, step, train])[:3]
            del got_rows
        assert steps in (4, 5)
    want, acc = np.array([5.0, 5.0]), np.full(2, 0.1)
    history = [want]
    for _ in range(5):
        gradient = 1.5 * 2 * (want - target)
        acc += gradient**2
        want = want - 0.2 * gradient / np.sqrt(acc)
        history.append(want)
    assert min(np.abs(got - h).max() for h in history[4:]) < 1e-5


def train_once(build, steps=1):
    """Returns the variable's value after steps of `build(variable)`'s operation in a graph, and the graph."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        v = tf1.get_variable("v", initializer=tf.constant([1.0, 2.0]))
        train = build(v)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        values = []
        for _ in range(steps):
            session.run(train)
            values.append(session.run(v))
        return values, graph


def loss_of(v):
    return tf.reduce_sum(v) * (1.0 + hvd.rank())


def exchanged_once():
    """Checks sources of gradients, and ways to use them."""

    def minimize(opt, v):
        return opt.minimize(loss_of(v))

    def clip(opt, v):
        clipped, _ = tf.clip_by_global_norm([g for g, _ in opt.compute_gradients(loss_of(v))], 1e6)
        return opt.apply_gradients(zip(clipped, [v], strict=True))

    def elsewhere(opt, v):
        return opt.apply_gradients([(tf.gradients(loss_of(v), v)[0], v)])

    for way in (minimize, clip, elsewhere):
        for op, factor in ((hvd.Average, 1.5), (hvd.Sum, 3.0)):

            def build(v, way=way, op=op):
                return way(hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), op=op), v)

            (got,), graph = train_once(build)
            np.testing.assert_allclose(got, np.array([1.0, 2.0]) - factor)
            assert exchanges_in(graph) == 1
    # Noise of this rank on top: a mean may be taken again, a sum may not.
    for op in (hvd.Average, hvd.Sum):

        def noisy(v, op=op):
            opt = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), op=op)
            noise = tf.random.normal([2]) * (1.0 + hvd.rank())
            return opt.apply_gradients([(g + noise, v) for g, v in opt.compute_gradients(loss_of(v))])

        if op == hvd.Average:
            (got,), _ = train_once(noisy)
            np.testing.assert_equal(*hvd.allgather_object(got))
        else:
            with pytest.raises(ValueError, match="A second exchange would be wrong"):
                train_once(noisy)


def local_variables_of_tensorflow1():
    """Checks a defect of Horovod's: there it raises OperatorNotAllowedInGraphError."""
    for scale, factor in ((True, 0.5), (False, 1.0)):

        def build(v, scale=scale):
            opt = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), scale_local_gradients=scale)
            opt.register_local_var(v)
            return opt.minimize(loss_of(v))

        (got,), graph = train_once(build)
        np.testing.assert_allclose(got, np.array([1.0, 2.0]) - factor * (1 + hvd.rank()))
        assert exchanges_in(graph) == 0


def passes_of_tensorflow1():
    for average, factor in ((True, 1.0), (False, 3.0)):
        for sparse in (False, True):

            def build(v, average=average, sparse=sparse):
                opt = hvd.DistributedOptimizer(
                    tf1.train.GradientDescentOptimizer(1.0),
                    backward_passes_per_step=3,
                    average_aggregated_gradients=average,
                    sparse_as_dense=sparse,
                )
                step = tf1.train.get_or_create_global_step()
                loss = loss_of(tf.gather(v, [0, 1]) if sparse else v)
                unrelated = tf1.get_variable("unrelated", initializer=0.0)
                train = opt.minimize(loss, global_step=step, var_list=[v, unrelated])
                with tf.control_dependencies([train]):
                    return tf.identity(step)

            got, _ = train_once(build, steps=7)
            done = np.array([0, 0, 1, 1, 1, 2, 2])[:, np.newaxis]
            np.testing.assert_allclose(got, np.array([[1.0, 2.0]]) - 1.5 * factor * done)
    with pytest.raises(ValueError, match="sparse_as_dense"):

        def sparse(v):
            opt = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
            return opt.minimize(loss_of(tf.gather(v, [0])))

        train_once(sparse)


def adasum(a, b):
    return a * (1 - a @ b / (2 * a @ a)) + b * (1 - a @ b / (2 * b @ b))


def adasum_of_tensorflow1():
    """Checks that Adasum combines the changes of steps, not gradients: the learning rate acts before."""
    changes = [-0.1 * np.array([1.0 + r, 2.0 - r]) for r in range(2)]
    for passes in (1, 2):

        def build(v, passes=passes):
            opt = hvd.DistributedOptimizer(
                tf1.train.GradientDescentOptimizer(0.1), op=hvd.Adasum, backward_passes_per_step=passes
            )
            gradient = tf.constant([1.0 + hvd.rank(), 2.0 - hvd.rank()])
            return opt.minimize(tf.reduce_sum(v * gradient))

        got, _ = train_once(build, steps=4)
        want, begin = np.array([1.0, 2.0]), np.array([1.0, 2.0])
        for step in range(4):
            want = want + changes[hvd.rank()]
            if (step + 1) % passes == 0:
                want = begin = begin + adasum(*(passes * c for c in changes))
            np.testing.assert_allclose(got[step], want, rtol=1e-5)
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(NotImplementedError, match="process sets"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, process_set=SETS[0])
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, average_aggregated_gradients=True)


def passes_of_another_job_are_forgotten():
    """Checks sums, and steps that Adasum combines, in graphs that pretend to belong to elastic jobs."""

    def join():
        hvd.barrier()
        hvd.shutdown()
        hvd.init(process_sets=SETS)

    def optimizer(op):
        return hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), op=op, backward_passes_per_step=3)

    member = "lockstep._src.engine.elastic.member"
    # Both ranks have the same change, so that Adasum is their mean.
    for op, factor in ((hvd.Average, 4.5), (hvd.Adasum, 3.0)):

        def loss(v, op=op):
            return tf.reduce_sum(v) * (1.0 if op == hvd.Adasum else 1.0 + hvd.rank())

        with tf.Graph().as_default(), tf1.Session() as session, mock.patch(member, lambda: True):
            v = tf1.get_variable("v", initializer=tf.constant([0.0]))
            train = optimizer(op).minimize(loss(v))
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            for _ in range(1 + hvd.rank()):
                session.run(train)
            with mock.patch(member, lambda: None):
                join()
            begin = session.run(v)
            for n in range(1, 7):
                session.run(train)
                if n % 3 == 0:
                    np.testing.assert_allclose(session.run(v), begin - factor * (n // 3))
        v, eager = tf.Variable([0.0]), optimizer(op)
        for _ in range(1 + hvd.rank()):
            eager.minimize(lambda v=v: loss(v), var_list=[v])
        join()
        begin = v.numpy()
        for n in range(1, 7):
            eager.minimize(lambda v=v: loss(v), var_list=[v])
            if n % 3 == 0:
                np.testing.assert_allclose(v, begin - factor * (n // 3))


def eager_tensorflow1():
    v = tf.Variable([1.0, 2.0])
    opt = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    for _ in range(3):
        opt.minimize(lambda: loss_of(v))
    np.testing.assert_allclose(v, [-2.0, -1.0])


CASES = [
    reductions,
    options_of_tapes,
    slices,
    local_sources,
    partial_tapes,
    program_of_the_documents,
    process_sets,
    monitored_session,
    exchanged_once,
    local_variables_of_tensorflow1,
    passes_of_tensorflow1,
    adasum_of_tensorflow1,
    passes_of_another_job_are_forgotten,
    eager_tensorflow1,
]


def all_cases():
    hvd.init(process_sets=SETS)
    run_cases(CASES, lambda name: hvd.barrier(name=name))
    hvd.shutdown()


# Promise (horovod_training.md): tapes and optimizers of TensorFlow 1 exchange slices, groups, process sets and Adasum.
test_tapes_and_optimizers_of_tensorflow1_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=240)
