"""Tests of which gradients count as exchanged."""

from __future__ import annotations

import tensorflow as tf

from lockstep._src.gradients import provenance
from lockstep._src.gradients.provenance import Origin, mark
from lockstep._src.gradients.variable_sets import VariableSet
from lockstep._src.graph import parts

tf1 = tf.compat.v1


def origin(gradient):
    return provenance.origin(gradient, set())


def origins(build):
    """Returns the origins of gradients of `build(exchanged, local, variable)`, in a graph and in a function."""
    result = []
    with tf.Graph().as_default():
        exchanged, local = tf1.placeholder(tf.float32, [2]) + 1.0, tf1.placeholder(tf.float32, [2])
        mark([exchanged])
        result.append([origin(g) for g in build(exchanged, local, tf1.get_variable("v", [2]))])
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def function(local):
        exchanged = local + 1.0
        mark([exchanged])
        result.append([origin(g) for g in build(exchanged, local, variable)])

    function(tf.zeros([2]))
    assert result[0] == result[1]
    return result[0]


# Promise (horovod_training.md): gradients that are computed only from exchanged ones count as exchanged.
def test_what_is_computed_from_exchanged_gradients_alone_is_exchanged():
    def build(exchanged, local, variable):
        del local
        clipped, _ = tf.clip_by_global_norm([exchanged, 2 * exchanged], 1.0)
        conditional = tf.cond(tf.reduce_all(exchanged > 0), lambda: exchanged / 2, lambda: exchanged * variable)
        slices = tf.IndexedSlices(exchanged, tf.constant([0, 1]))
        called = tf.function(lambda x: x * 2)(exchanged)
        return [exchanged, *clipped, exchanged + 0.1 * variable, conditional, slices, called]

    assert set(origins(build)) == {Origin.EXCHANGED}


def test_what_was_never_exchanged_is_local():
    def build(exchanged, local, variable):
        del exchanged
        return [
            local * variable,
            tf.constant([1.0]),
            tf.random.normal([2]),
            tf.IndexedSlices(local, tf.constant([0, 1])),
        ]

    assert set(origins(build)) == {Origin.LOCAL}


# Promise (horovod_training.md): gradients that are computed only from exchanged ones count as exchanged.
def test_what_has_something_of_this_rank_in_it_is_mixed():
    def build(exchanged, local, variable):
        del variable
        return [exchanged + local, exchanged + tf.random.normal([2]), tf.stack([exchanged, local])]

    assert set(origins(build)) == {Origin.MIXED}


def test_inside_of_conditionals_and_functions():
    """A branch knows the origin of captured tensors; an argument may come from anywhere."""
    seen = []

    def look(gradient):
        seen.append(origin(gradient))
        return gradient

    @tf.function
    def function(local):
        exchanged = local + 1.0
        mark([exchanged])
        tf.cond(tf.reduce_all(local > 0), lambda: look(exchanged * 2), lambda: look(exchanged + local))
        tf.function(look)(exchanged)
        tf.function(lambda: look(2 * exchanged))()

    function(tf.zeros([2]))
    assert seen == [Origin.EXCHANGED, Origin.MIXED, Origin.LOCAL, Origin.EXCHANGED]


def test_eagerly_a_tensor_is_marked_itself():
    gradient = tf.constant([1.0])
    assert origin(gradient) is Origin.LOCAL
    mark([gradient, None, tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))])
    assert origin(gradient) is Origin.EXCHANGED
    assert origin(gradient * 1.0) is Origin.LOCAL


def test_what_was_delivered_is_forgotten_with_its_variable():
    delivered = VariableSet()
    variable, other = tf.Variable(1.0), tf.Variable(1.0)
    delivered.add([variable, other])
    assert variable in delivered
    delivered.discard([other])
    assert other not in delivered
    del variable
    assert not delivered._variables


def test_values_of_parts_differ_that_leave_functions_and_loops():
    def norm_of_a_part(x):
        part = tf.reshape(tf.range(10.0) * x, [5, 2])
        parts.note(part)
        return tf.norm(part)

    with tf.Graph().as_default():
        exchanged = tf.ones([2]) + 1.0
        mark([exchanged])
        one = tf.constant(1.0)
        factors = [
            one,
            tf.function(lambda x: 2.0 * x)(one),
            tf.function(norm_of_a_part)(one),
            tf.function(lambda x: tf.function(norm_of_a_part)(x))(one),
            tf.while_loop(lambda x: x < 1.0, lambda x: [norm_of_a_part(x)], [one])[0],
            tf.switch_case(tf.constant(0), [lambda: norm_of_a_part(one), lambda: one]),
        ]
        assert provenance.differing_in_graph([exchanged * factor for factor in factors]) == [2, 3, 4, 5]
