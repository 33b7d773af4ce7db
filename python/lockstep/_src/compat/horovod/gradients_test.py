"""Gradients that two workers exchange with each other: all gradients of one variable and one call, once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep._src.compat.horovod.training_test import exchanges_in, loss_of, train_once
from lockstep.testing import reported_by_case, run_cases

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
KERAS3 = hasattr(tf.keras, "__version__") and int(tf.keras.__version__.partition(".")[0]) >= 3
SETS = [hvd.ProcessSet([0])]
SHARED = [((2,), 1.0), ((2, 2), 10.0), ((2,), 100.0)]


def built(optimizer, variables):
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    return optimizer


# On workers.


def a_gradient_that_two_variables_share():
    """Checks a tensor that TensorFlow returns for both variables: an exchange for one does not change the other's."""
    scales = (1.0 + hvd.rank(), 1.5)

    def check(optimize, first, factor, is_eager, is_chained=False, rows=None):
        """Checks that `first(a)` keeps the gradient of a, times `factor`, and that the gradient of b is averaged."""
        shape = [2] if rows is None else [2, 1]
        a, b = tf.Variable(np.ones(shape, np.float32)), tf.Variable(np.ones(shape, np.float32))
        of_a, of_b = first(a), hvd.DistributedOptimizer(optimize(1.0))
        built(of_a, [a]), built(of_b, [b])

        def step(x):
            with tf.GradientTape() as tape:
                both = a + (b * 2.0 if is_chained else b)
                loss = tf.reduce_sum((both if rows is None else tf.gather(a, rows) + tf.gather(b, rows)) * x)
            of_one, of_other = tape.gradient(loss, [a, b])
            of_a.apply_gradients([(of_one, a)])
            of_b.apply_gradients([(of_other, b)])

        (step if is_eager else tf.function(step))(tf.constant(scales[0]))
        np.testing.assert_allclose(a, np.full(shape, 1.0 - factor * scales[0]))
        np.testing.assert_allclose(b, np.full(shape, 1.0 - scales[1] * (2.0 if is_chained else 1.0)))

    optimizers = [tf.keras.optimizers.SGD, tf1.train.GradientDescentOptimizer]
    for optimize, is_eager, is_chained, rows in itertools.product(
        optimizers, (True, False), (False, True), (None, [0, 1])
    ):
        if rows is not None and is_chained:
            continue

        def keeps(v, optimize=optimize):
            opt = hvd.DistributedOptimizer(optimize(1.0), scale_local_gradients=False)
            opt.register_local_var(v)
            return opt

        check(optimize, keeps, 1.0, is_eager, is_chained, rows)
        # The rank that isn't in the set keeps its gradients; the other rank is the only one in the set.
        check(
            optimize,
            lambda _, optimize=optimize: hvd.DistributedOptimizer(optimize(1.0), process_set=SETS[0]),
            1.0,
            is_eager,
            is_chained,
            rows,
        )

    def in_a_graph(v):
        w = tf1.get_variable("w", initializer=tf.constant([1.0, 2.0]))
        first = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), scale_local_gradients=False)
        first.register_local_var(w)
        gradients = tf.gradients(loss_of(v + w), [w, v])
        second = hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0))
        return [o.apply_gradients([(g, x)]) for o, g, x in zip((first, second), gradients, (w, v), strict=True)]

    (got,), graph = train_once(in_a_graph)
    np.testing.assert_allclose(got, np.array([1.0, 2.0]) - 1.5)
    assert exchanges_in(graph) == 1


def functions_called_twice_in_one():
    """Checks that ranks exchange each call's gradients with gradients of the same call, in any order."""
    v, table = tf.Variable([1.0, 2.0]), tf.Variable(np.ones([4, 2], np.float32))

    def losses(x):
        return tf.reduce_sum(v * x * x), tf.reduce_sum(tf.gather(table, [0, hvd.rank()]) * x)

    for arguments, op in itertools.product(({}, {"groups": 1}, {"sparse_as_dense": True}), (hvd.Average, hvd.Sum)):

        @tf.function
        def gradients(x, arguments=arguments, op=op):
            with tf.GradientTape() as tape:
                loss = tf.add_n(losses(x))
            got = hvd.DistributedGradientTape(tape, op=op, **arguments).gradient(loss, [v, table])
            return [tf.convert_to_tensor(g) for g in got]

        @tf.function
        def others(x, op=op):
            with tf.GradientTape() as tape:
                loss, _ = losses(x)
            return hvd.DistributedGradientTape(tape, op=op).gradient(loss, v)

        @tf.function
        def towers(x, gradients=gradients, others=others):
            return gradients(x), gradients(10.0 * x), others(100.0 * x)

        factor = 1.0 if op == hvd.Sum else 0.5
        for _ in range(10):
            *both, third = towers(tf.constant([1.0, 1.0]) * (1.0 + hvd.rank()))
            for (of_v, of_table), scale in zip(both, (1.0, 10.0), strict=True):
                np.testing.assert_allclose(of_v, np.full(2, 5.0 * scale**2 * factor))
                of_rows = np.array([1.0 + 1.0 + 2.0, 2.0, 0.0, 0.0]) * scale * factor
                np.testing.assert_allclose(of_table, of_rows[:, np.newaxis] * np.ones([1, 2]))
            np.testing.assert_allclose(third, np.full(2, 5.0 * 100**2 * factor))


def steps_called_twice_in_one():
    for optimize, passes in itertools.product((tf.keras.optimizers.SGD, tf1.train.GradientDescentOptimizer), (1, 2)):
        v = tf.Variable([1.0, 2.0])
        optimizer = built(hvd.DistributedOptimizer(optimize(1.0), backward_passes_per_step=passes), [v])

        @tf.function
        def step(x, optimizer=optimizer, v=v):
            optimizer.apply_gradients([(x * (1.0 + hvd.rank()), v)])

        @tf.function
        def steps(x, step=step):
            step(x)
            step(10.0 * x)

        for _ in range(3):
            steps(tf.constant([1.0, 2.0]))
        np.testing.assert_allclose(v, np.array([1.0, 2.0]) - 3 * 1.5 * 11 * np.array([1.0, 2.0]))


def graphs_that_differ_in_what_is_local():
    """Checks ranks with different numbers of conditionals, whose parts TensorFlow counts."""
    v, own = tf.Variable([1.0, 2.0]), [tf.Variable([1.0, 1.0]) for _ in range(3 * hvd.rank())]
    opt = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    for each in own:
        opt.register_local_var(each)
    built(opt, [*own, v])

    @tf.function
    def step(x):
        total = tf.add_n([0.0 * each for each in [v, *own]])
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: x + total, lambda: 2.0 * x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.add_n([v, *own]) * x)
        variables = [*own, v]
        opt.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for _ in range(4):
        step(tf.constant([1.0, 2.0]) * (1.0 + hvd.rank()))
    np.testing.assert_allclose(v, np.array([1.0, 2.0]) - 4 * 1.5 * np.array([1.0, 2.0]))


def conditionals_of_one_rank():
    """Adds conditionals on one rank before the one in which several passes exchange; TensorFlow numbers all of them."""

    def only_on_rank_0(x):
        if hvd.rank() == 0:
            return [tf.cond(tf.reduce_sum(x) > 1e9, lambda: tf.constant(1.0), lambda: tf.constant(2.0))]
        return []

    for optimize in (tf.keras.optimizers.SGD, tf1.train.GradientDescentOptimizer):
        v = tf.Variable([1.0, 2.0])
        opt = built(hvd.DistributedOptimizer(optimize(1.0), backward_passes_per_step=2), [v])

        @tf.function
        def step(x, opt=opt, v=v):
            with tf.control_dependencies(only_on_rank_0(x)):
                opt.apply_gradients([(x, v)])

        for _ in range(4):
            step(tf.constant([1.0, 2.0]) * (1.0 + hvd.rank()))
        np.testing.assert_allclose(v, np.array([1.0, 2.0]) - 4 * 1.5 * np.array([1.0, 2.0]))

    def adasum(make):
        v, opt = make(), descent(op=hvd.Adasum, backward_passes_per_step=2)
        step = None
        for _ in range(2):
            with tf.control_dependencies([*only_on_rank_0(v), *([step] if step is not None else [])]):
                step = opt.apply_gradients([(tf.constant(np.eye(2, dtype=np.float32)[hvd.rank()]), v)])
        return step

    (v,), error = run_in("graph", adasum)
    assert error is None
    np.testing.assert_allclose(v, [-2.0, -2.0], rtol=1e-5)


def run_in(graph_or_eager, build):
    """Runs what `build(make_variable)` makes, and gives the variables' values before an error of the ranks, or after.

    Returns:
      (values, the error or None).
    """
    variables = []

    def make(shape=(2,)):
        variables.append(
            tf1.get_variable(f"v{len(variables)}", initializer=tf.zeros(shape))
            if graph_or_eager == "graph"
            else tf.Variable(tf.zeros(shape))
        )
        return variables[-1]

    error = None
    if graph_or_eager == "eager":
        try:
            build(make)
        except tf.errors.FailedPreconditionError as e:
            error = e
        return [v.numpy() for v in variables], error
    with tf.Graph().as_default(), tf1.Session() as session:
        train = build(make)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        try:
            session.run(train)
        except tf.errors.FailedPreconditionError as e:
            error = e
        return session.run(variables), error


def check_refused(outcome):
    values, error = outcome
    assert error is not None
    assert "variables_with_gradients_which" in str(error)
    for value in values:
        np.testing.assert_equal(value, np.zeros_like(value))


def descent(**arguments):
    return hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), **arguments)


def gradients_of_other_variables_of_the_same_shape():
    """Checks that all ranks get an error if a rank's graph or optimizer tells that the variables differ."""
    own, one, ten = hvd.rank(), tf.ones([2]).numpy(), 10 * tf.ones([2]).numpy()

    def only_one_has_each(make):
        pairs = [(tf.constant(one), make()), (tf.constant(ten), make())]
        return descent().apply_gradients(pairs[own : own + 1])

    def in_another_order(make):
        pairs = [(tf.constant(one), make()), (tf.constant(ten), make())]
        return descent().apply_gradients(pairs[:: -1 if own else 1])

    def optimizers_in_another_order(make):
        pairs = [(tf.constant(one), make()), (tf.constant(ten), make())]
        return tf.group(*[descent().apply_gradients([pair]) for pair in pairs[:: -1 if own else 1]])

    for build in (only_one_has_each, in_another_order, optimizers_in_another_order):
        check_refused(run_in("graph", build))
    if not KERAS3:
        return
    for is_filtered, is_eager, is_scaled in itertools.product((True, False), repeat=3):
        a, b = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
        if is_scaled:
            optimizer = tf.keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
        optimizer.build([a, b])

        def step(a=a, b=b, optimizer=optimizer, is_filtered=is_filtered):
            pairs = [(tf.constant(one), a), (tf.constant(ten), b)]
            optimizer.apply_gradients([pairs[own]] if is_filtered else pairs[:: -1 if own else 1])

        with pytest.raises(tf.errors.FailedPreconditionError, match="variables_with_gradients_which"):
            (step if is_eager else tf.function(step))()
        for v in (a, b):
            np.testing.assert_equal(v.numpy(), [0.0, 0.0])


def other_local_variables_do_not_count():
    """Adds local variables on one rank, and loads an optimizer's variables on rank 0: neither counts."""

    def build(make):
        # Only rank 1 has these, before and between the shared ones. One optimizer has them, another trains the rest.
        mine = [(tf.ones([2]), make()) for _ in range(2 * hvd.rank())]
        shared = [(tf.ones([2]) * (1.0 + hvd.rank()), make())]
        mine += [(tf.ones([2]), make()) for _ in range(hvd.rank())]
        shared += [(10.0 * tf.ones([2]) * (1.0 + hvd.rank()), make())]
        first, second = descent(), descent()
        for _, v in mine:
            first.register_local_var(v)
        return tf.group(first.apply_gradients([*mine, shared[0]]), second.apply_gradients(shared[1:]))

    values, error = run_in("graph", build)
    assert error is None
    np.testing.assert_allclose(values[2 * hvd.rank()], [-1.5, -1.5])
    np.testing.assert_allclose(values[-1], [-15.0, -15.0])
    own, a, b = tf.Variable([0.0]), tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    everything = [own, a, b] if hvd.rank() else [a, b]
    if hvd.rank():
        optimizer.register_local_var(own)
    else:
        built(optimizer, everything)
    optimizer.apply_gradients([(tf.ones([1]) * (1.0 + hvd.rank()), v) for v in everything])
    optimizer.apply_gradients([(tf.ones([1]) * (1.0 + hvd.rank()), a), (tf.ones([1]), b)])
    np.testing.assert_allclose(a, [-3.0])
    np.testing.assert_allclose(b, [-2.5])


def what_a_rank_trains_by_itself_does_not_count():
    """Trains tables that wrapped optimizers do not know, in any number and shape on each rank."""

    def build(make):
        tables = [make((3 + i, 2)) for i in range(2 * hvd.rank())]
        shared = [(tf.fill(shape, factor * (1.0 + hvd.rank())), make(shape)) for shape, factor in SHARED]
        own = tf1.train.GradientDescentOptimizer(1.0).apply_gradients([(tf.ones_like(v), v) for v in [*tables, make()]])
        return tf.group(own, descent().apply_gradients(shared))

    values, error = run_in("graph", build)
    assert error is None
    for value, (shape, factor) in zip(values[2 * hvd.rank() :], SHARED, strict=False):
        np.testing.assert_allclose(value, np.full(shape, -1.5 * factor))
    for value in [*values[: 2 * hvd.rank()], values[-1]]:
        np.testing.assert_allclose(value, -np.ones_like(value))


def adasum_of_several_optimizers():
    """Checks independent optimizers in one graph; the changes of different ranks are orthogonal here."""
    own = np.eye(2, dtype=np.float32)[hvd.rank()]

    for steps in (1, 2):

        def build(make, steps=steps):
            optimizers = [descent(op=hvd.Adasum, backward_passes_per_step=steps) for _ in range(2)]
            pairs = [(tf.constant(factor * own), make()) for factor in (1.0, 10.0)]
            first = tf.group(*[o.apply_gradients([pair]) for o, pair in zip(optimizers, pairs, strict=True)])
            if steps == 1:
                return first
            with tf.control_dependencies([first]):
                return tf.group(*[o.apply_gradients([pair]) for o, pair in zip(optimizers, pairs, strict=True)])

        (a, b), error = run_in("graph", build)
        assert error is None
        np.testing.assert_allclose(a, np.full(2, -steps), rtol=1e-5)
        np.testing.assert_allclose(b, np.full(2, -10.0 * steps), rtol=1e-5)
    # Ranks that change different variables.
    for mode in ("graph", "eager"):

        def none_of_one(make):
            gradients = [None, tf.constant(own)] if hvd.rank() else [tf.constant(own), None]
            return descent(op=hvd.Adasum).apply_gradients([(g, make()) for g in gradients])

        check_refused(run_in(mode, none_of_one))

    def filtered(make):
        return descent(op=hvd.Adasum).apply_gradients([(tf.constant(own), [make(), make()][hvd.rank()])])

    check_refused(run_in("graph", filtered))


def adasum_of_other_variables_later():
    """Steps are common to all variables, which begin with the first."""
    a, b = tf.Variable(tf.zeros([2])), tf.Variable(tf.zeros([2]))
    optimizer = descent(op=hvd.Adasum, backward_passes_per_step=2)
    optimizer.apply_gradients([(tf.ones([2]), a)])
    with pytest.raises(ValueError, match="wanted only variables of the first call"):
        optimizer.apply_gradients([(tf.ones([2]), b)])
    optimizer.apply_gradients([(tf.ones([2]), a)])
    np.testing.assert_allclose(a, [-2.0, -2.0], rtol=1e-5)
    np.testing.assert_allclose(b, [0.0, 0.0])


def adasum_leaves_local_variables():
    own = np.eye(2, dtype=np.float32)[hvd.rank()]
    for mode, steps in itertools.product(("graph", "eager"), (1, 2)):

        def build(make, steps=steps):
            mine, shared = [make() for _ in range(hvd.rank())], make()
            optimizer = descent(op=hvd.Adasum, backward_passes_per_step=steps)
            for v in mine:
                optimizer.register_local_var(v)
            step = None
            for _ in range(steps):
                with tf.control_dependencies([step] if step is not None else []):
                    step = optimizer.apply_gradients([(tf.constant(own), v) for v in [*mine, shared]])
            return step

        values, error = run_in(mode, build)
        assert error is None
        np.testing.assert_allclose(values[-1], np.full(2, -steps), rtol=1e-5)
        for value in values[:-1]:
            np.testing.assert_allclose(value, -steps * own)


def adasum_of_references():
    """Variables of `disable_v2_behavior`, which are trained in the memory that is read of them."""
    own = np.eye(2, dtype=np.float32)[hvd.rank()]
    tf1.disable_control_flow_v2()
    try:
        for steps in (1, 2):
            with tf.Graph().as_default(), tf1.Session() as session:
                v = tf1.get_variable("v", initializer=tf.zeros([2]), use_resource=False)
                train = descent(op=hvd.Adasum, backward_passes_per_step=steps).apply_gradients([(tf.constant(own), v)])
                session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
                for _ in range(2):
                    session.run(train)
                np.testing.assert_allclose(session.run(v), [-2.0, -2.0], rtol=1e-5)
    finally:
        tf1.enable_control_flow_v2()


CASES = [
    a_gradient_that_two_variables_share,
    functions_called_twice_in_one,
    steps_called_twice_in_one,
    graphs_that_differ_in_what_is_local,
    conditionals_of_one_rank,
    gradients_of_other_variables_of_the_same_shape,
    other_local_variables_do_not_count,
    what_a_rank_trains_by_itself_does_not_count,
    adasum_of_several_optimizers,
    adasum_of_other_variables_later,
    adasum_leaves_local_variables,
    adasum_of_references,
]


def all_cases():
    hvd.init(process_sets=SETS)
    run_cases(CASES, lambda name: hvd.barrier(name=name))
    hvd.shutdown()


# Promise (horovod_training.md): each gradient meets its own gradient on other ranks, in any order of calls.
test_gradients_meet_their_own_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=240)
