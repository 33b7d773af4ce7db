"""Tests of `communicates` and the other searches, in graphs of one worker."""

import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.graph.ancestry import ancestors, communicates, stems_from

tf1 = tf.compat.v1


def through_inputs():
    return 2.0 * ordered.allreduce(tf.constant(1.0))


def through_control_inputs():
    with tf.control_dependencies([ordered.barrier()]):
        return tf.identity(1.0)


def through_a_function():
    return tf.function(lambda x: tf.function(lambda y: ordered.allreduce(y))(x))(tf.constant(1.0))


def through_a_branch():
    return tf.cond(tf1.placeholder(tf.bool, []), lambda: ordered.allreduce(tf.constant(1.0)), lambda: 0.0)


def through_a_loop():
    return tf.while_loop(lambda x: x < 3.0, lambda x: ordered.allreduce(x) + 1.0, [tf.constant(1.0)])


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize(
    "build", [through_inputs, through_control_inputs, through_a_function, through_a_branch, through_a_loop]
)
def test_a_collective_is_found(build, control_flow_v2):
    before = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if control_flow_v2 else tf1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default():
            assert communicates(tf.nest.flatten(build()))
    finally:
        (tf1.enable_control_flow_v2 if before else tf1.disable_control_flow_v2)()


def test_what_stands_beside_collectives_does_not_communicate():
    with tf.Graph().as_default():
        ordered.allreduce(tf.constant(1.0))
        local = tf.function(lambda x: x + 1.0)(tf.constant(1.0))
        assert not communicates([local, local.op])
        assert not communicates([])


def test_ancestors_are_what_runs_each_once():
    with tf.Graph().as_default():
        a = tf.constant(1.0, name="a")
        with tf.control_dependencies([tf.no_op("before")]):
            b = tf.add(a, a, name="b")
        tf.identity(b, name="unused")
        assert sorted(op.name for op in ancestors([b, b.op])) == ["a", "b", "before"]


def test_a_value_stems_from_what_a_branch_took_from_outside():
    before = tf1.control_flow_v2_enabled()
    tf1.enable_control_flow_v2()
    inside = []

    def branch(x):
        inside.append(2.0 * x)
        return inside[0]

    try:
        with tf.Graph().as_default():
            source, other = tf.constant(1.0, name="source"), tf.constant(1.0)
            doubled = 2.0 * source
            tf.cond(tf1.placeholder(tf.bool, []), lambda: branch(doubled), lambda: other)
            unrelated = set()
            assert stems_from(inside[0].op, lambda op: op.name == "source", unrelated)
            assert not unrelated
            assert not stems_from(doubled.op, lambda op: op.name == "absent", unrelated)
            assert unrelated == {doubled.op, *(tensor.op for tensor in doubled.op.inputs)}
    finally:
        (tf1.enable_control_flow_v2 if before else tf1.disable_control_flow_v2)()
