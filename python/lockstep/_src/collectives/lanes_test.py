"""Tests of names, scopes and divisions of the two lanes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives.lanes import NamedLane, OrderedLane, by_type


class Outside:
    """A process set of three ranks without this process."""

    process_set_id = 1

    def included(self):
        return False

    def size(self):
        return 3


def test_types_come_in_the_order_of_their_first_tensors():
    tensors = [tf.zeros([1], dtype) for dtype in (tf.float64, tf.float32, tf.float64, tf.int32)]
    assert by_type(tensors) == [[0, 2], [1], [3]]
    assert by_type([]) == []


def test_an_exchange_by_name_has_a_scope_of_its_own():
    lane = NamedLane(Outside())
    assert [lane.scope_of("x"), lane.scope_of("x")] == ["x_Allreduce/"] * 2
    with tf.Graph().as_default():
        assert [lane.scope_of("x"), lane.scope_of("x")] == ["x_Allreduce/", "x_Allreduce_1/"]
    scopes = []

    def branch():
        scopes.append(lane.scope_of("x"))
        return 0

    @tf.function
    def function(value):
        branch()
        return tf.cond(value > 0, branch, branch)

    function(tf.constant(1.0))
    assert scopes == ["x_Allreduce/", "cond/x_Allreduce/", "cond/x_Allreduce_1/"]
    assert lane.name_of("scope/", None, 7) == "scope/grad_7"


def test_gradients_of_the_ordered_lane_are_called_after_their_variables():
    with tf.Graph().as_default(), tf.compat.v1.variable_scope("layer"):
        assert OrderedLane().name_of("", tf.compat.v1.get_variable("w", []), 3) == "layer_w"


def test_a_process_outside_of_the_set_divides_by_its_size():
    lane = NamedLane(Outside())
    assert not lane.takes_part()
    np.testing.assert_array_equal(lane.divided([tf.constant([3.0, 6.0])])[0], [1, 2])


def test_the_named_lane_refuses_xla_and_sets_that_are_not_in_use():
    lane = NamedLane(Outside())

    @tf.function(jit_compile=True)
    def compiled():
        lane.check("x")

    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        compiled()
    lane._ranks.process_set_id = None
    with pytest.raises(ValueError, match="not in use"):
        lane.check("x")
