"""Tests of the form in which a program sees gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from lockstep._src.collectives.slices import before_sum, summed_by_row, with_unique_rows
from lockstep._src.graph import parts
from lockstep._src.scope import embedding_scope, scope

tf1 = tf.compat.v1
TABLE = np.arange(12, dtype=np.float32).reshape(6, 2)


def _twice(table):
    """Returns a loss of two lookups that name a row several times."""
    pooled = tf.nn.embedding_lookup_sparse(
        table, tf.ragged.constant([[3, 3], [1]], dtype=tf.int64), None, combiner="sum"
    )
    return tf.reduce_sum(pooled) + tf.reduce_sum(tf.nn.embedding_lookup(table, tf.constant([3, 5])))


def test_a_gradient_has_one_slice_for_each_row_in_graphs_and_of_tapes():
    for made_by in ("tf.gradients", "compute_gradients"):
        for is_table in (False, True):
            with tf.Graph().as_default(), scope(), tf1.Session() as session:
                with embedding_scope(sharding=is_table):
                    table = tf1.get_variable("table", initializer=TABLE)
                if made_by == "tf.gradients":
                    (gradient,) = tf.gradients(_twice(table), [table])
                else:
                    optimizer = tf1.train.GradientDescentOptimizer(1.0)
                    ((gradient, _),) = optimizer.compute_gradients(_twice(table), [table])
                session.run(tf1.global_variables_initializer())
                indices, values = session.run([gradient.indices, gradient.values])
            assert sorted(zip(indices, values[:, 0], strict=True)) == [(1, 1.0), (3, 3.0), (5, 1.0)], (
                made_by,
                is_table,
            )
    variable = tf.Variable(TABLE)
    with scope(), tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, [3, 3, 1]))
        gradients = tape.gradient(loss, {"a": variable})
    assert sorted(gradients["a"].indices.numpy()) == [1, 3]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, [3, 3, 1]))
    assert tape.gradient(loss, variable).indices.shape == [3], "outside of a scope TensorFlow's gradients stay"


def test_a_fused_update_takes_the_slices_before_their_sum():
    with tf.Graph().as_default() as graph, scope():
        with embedding_scope():
            table = tf1.get_variable("table", initializer=TABLE)
        tf1.train.AdagradOptimizer(1.0).minimize(_twice(table))
        (update,) = (op for op in graph.get_operations() if op.type == "LockstepSparseUpdate")
        behind, front = set(), [tensor.op for tensor in update.inputs]
        while front:
            op = front.pop()
            if op not in behind:
                behind.add(op)
                front.extend(tensor.op for tensor in op.inputs)
    types = {op.type for op in behind}
    assert "UnsortedSegmentSum" not in types, types


def test_slices_are_summed_once():
    with tf.Graph().as_default():
        slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([4, 1, 4]))
        assert before_sum(slices.values, slices.indices) is None
        summed = with_unique_rows(slices)
        assert with_unique_rows(summed) is summed
        values, indices = before_sum(tf.identity(summed.values), summed.indices)
        assert values is slices.values
        assert indices is slices.indices
        other = summed_by_row(tf.IndexedSlices(slices.values, tf.constant([0, 0, 1])))
        assert before_sum(summed.values, other.indices) is None
        assert before_sum(2.0 * summed.values, summed.indices) is None
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([4, 1, 4]))
    summed = with_unique_rows(slices)
    assert summed.indices.shape == [2]
    assert with_unique_rows(summed) is summed


def _results_of_functions(part, other):
    """Yields pairs: a result of a function, a branch or a loop, and whether it is a part."""

    def inside(x):
        gradient = tf.reshape(tf.range(10.0) * tf.reduce_sum(x), [5, 2])
        parts.note(gradient)
        return tf.reduce_sum(x) + other, gradient * 2.0, x[:2]

    called = tf.function(inside)(other)
    nested = tf.function(lambda x: tf.function(inside)(x)[:2])(other)
    yield from zip(called, (False, True, False), strict=True)
    yield from zip(nested, (False, True), strict=True)
    twice = tf.function(lambda x, y: (x * 2.0, y * 2.0))
    plain = tf.reshape(tf.range(10.0) * tf.reduce_sum(other), [5, 2])
    yield from zip(twice(part, plain), (True, False), strict=True)
    yield from zip(twice(plain, part), (False, True), strict=True)
    zeros = tf.zeros([5, 2])
    total = tf.while_loop(
        lambda i, *_: i < 2,
        lambda i, mine, both, old, rest: (i + 1, mine + part, both + old, mine, rest + plain),
        [0, zeros, zeros, zeros, zeros],
    )
    yield from zip(total, (False, True, True, True, False), strict=True)
    yield tf.while_loop(lambda _: False, lambda x: [tf.zeros_like(x)], [part])[0], True
    yield tf.switch_case(tf.cast(other[0, 0], tf.int32), [lambda: plain, lambda: part + 1.0, lambda: zeros]), True
    yield tf.switch_case(tf.cast(other[0, 0], tf.int32), [lambda: plain, lambda: plain + part[0, 0]]), False
    yield tf.cond(other[0, 0] > 0.0, lambda: inside(other)[1], lambda: plain), True
    yield tf.cond(other[0, 0] > 0.0, lambda: plain, lambda: -plain), False
    captured = tf.function(lambda: part * 2.0)
    yield captured(), True
    yield tf.function(lambda: tf.while_loop(lambda _: True, lambda x: [x + captured()], [zeros])[0])(), True


def test_parts_are_known_that_leave_functions_branches_and_loops():
    with tf.Graph().as_default():
        part, other = tf1.placeholder(tf.float32, [5, 2]), tf1.placeholder(tf.float32, [3, 2])
        parts.note(part)
        for number, (value, wanted) in enumerate(_results_of_functions(part, other)):
            assert parts.is_part(value) == wanted, (number, value)

    @tf.function(autograph=False)
    def traced(part, other):
        parts.note(part)
        for number, (value, wanted) in enumerate(_results_of_functions(part, other)):
            assert parts.is_part(value) == wanted, (number, value)
        return tf.zeros([])

    traced.get_concrete_function(tf.TensorSpec([5, 2]), tf.TensorSpec([3, 2]))


def test_slices_are_parts_that_leave_functions():
    with tf.Graph().as_default():
        other = tf1.placeholder(tf.float32, [3, 2])

        @tf.function
        def inside(x):
            slices, rest = (tf.IndexedSlices(x * 2.0, tf.constant([4, 1, n])) for n in range(2))
            parts.note(slices)
            return slices, rest

        slices, rest = inside(other)
        assert parts.is_part(slices)
        assert not parts.is_part(rest)
        assert parts.is_part(tf.IndexedSlices(tf.zeros([2, 2]), tf.gather(slices.indices, [0, 2])))
        assert not parts.is_part(tf.IndexedSlices(tf.zeros([2, 2]), tf.gather(rest.indices, [0, 2])))


def test_results_of_unknown_rank_are_no_parts():
    with tf.Graph().as_default():
        part = tf1.placeholder(tf.float32, [5, 2])
        parts.note(part)
        norm = tf.py_function(lambda x: tf.norm(x), [part], tf.float32)
        assert not parts.is_part(norm)
        assert not parts.is_part(tf1.placeholder(tf.float32, [4, 2]) * norm)
        assert not parts.is_part(tf1.placeholder(tf.float32) * part[0, 0])


def test_functions_of_each_element_of_a_part_are_parts():
    with tf.Graph().as_default():
        part, other = tf1.placeholder(tf.float32, [5, 2]), tf1.placeholder(tf.float32, [3, 2])
        parts.note(part)
        bent = tf.cond(tf.reduce_sum(other) > 0, lambda: 2.0 * tf.tanh(part), lambda: part + 1.0)
        held = tf1.Variable(tf.zeros([5, 2]), use_resource=True)
        parts.note_variable(held)
        for value in (
            part,
            bent,
            tf.clip_by_value(part, -1.0, 1.0),
            held.read_value(),
            tf.cast(held * 2.0, tf.float64),
        ):
            assert parts.is_part(value), value
        for value in (other, other * tf.reduce_sum(part), tf.reduce_sum(part, 0), tf.norm(part), 3.0):
            assert not parts.is_part(value), value
        slices = tf.IndexedSlices(other, tf.constant([4, 1, 0]))
        assert not parts.is_part(slices)
        parts.note(slices)
        assert parts.is_part(tf.IndexedSlices(tf.zeros([3, 2]), slices.indices))
        assert parts.is_part(tf.IndexedSlices(tf.zeros([2, 2]), tf.gather(slices.indices, [0, 2])))
    eager = tf.ones([5, 2])
    assert not parts.is_part(eager)
    parts.note(eager)
    assert parts.is_part(eager)
