"""Which gradients meet which, on two workers: those of one variable and one call, all of them, and once."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.training_test import exchanges_in, loss_of, train_once
from lockstep.testing import call_workers, run_cases

tf1 = tf.compat.v1
SETS = [hvd.ProcessSet([0])]


def built(optimizer, variables):
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    return optimizer


# On workers.


def a_gradient_that_two_variables_share():
    """TensorFlow hands out one tensor for both; what becomes of it for one says nothing of the other's."""
    scales = (1.0 + hvd.rank(), 1.5)

    def check(optimize, first, factor, is_eager, is_chained=False, rows=None):
        """`first(a)` keeps the gradient of a as it is, times `factor`; that of b is averaged."""
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
        # On the rank that isn't in the set, all gradients stay as they are; on the other one, it is alone.
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
    """Each call's gradients meet those of the same call, in whatever order they are there."""
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
    """TensorFlow counts parts of conditionals that it puts in place, of which this rank may have more."""
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


CASES = [
    a_gradient_that_two_variables_share,
    functions_called_twice_in_one,
    steps_called_twice_in_one,
    graphs_that_differ_in_what_is_local,
]


def all_cases():
    hvd.init(process_sets=SETS)
    run_cases(CASES, lambda name: hvd.barrier(name=name))
    hvd.shutdown()


def test_gradients_meet_their_own_on_two_workers():
    call_workers(all_cases, 2, timeout_s=240)
