"""Tests of Adasum with a second rank that a lane stands for, against the formula of the paper in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.gradients.adasum import AdasumOptimizer

tf1 = tf.compat.v1
START, OTHERS = np.array([1.0, 2.0], np.float32), np.array([0.5, -0.25], np.float32)
OWN = np.array([[1.0, 0.5], [-2.0, 3.0], [0.25, 1.0], [4.0, -1.0]], np.float32)


def adasum(a, b):
    """Returns the adaptive sum of two vectors (Maleki et al., MLSys 2021, section 3)."""
    return (1 - np.dot(a, b) / (2 * np.dot(a, a))) * a + (1 - np.dot(a, b) / (2 * np.dot(b, b))) * b


class Lane:
    """A lane of two ranks, of which the other one has changed each variable by `OTHERS`."""

    def __init__(self):
        self.agreed, self.changes = [], []

    def scope_of(self, caller):
        return f"{caller}/"

    def agree(self, describe, scope):
        self.agreed.append(describe()[:2])
        return []

    def allreduce(self, tensors, names, reduction, bucket, predivide_factor):
        assert (reduction, predivide_factor) == ("adasum", 1.0)
        self.changes += names
        return [tf.numpy_function(lambda a: adasum(a, OTHERS).astype(a.dtype), [t], t.dtype) for t in tensors]


def optimizer(steps=1, inner=None, **arguments):
    made = AdasumOptimizer(inner or tf1.train.GradientDescentOptimizer(0.5), "adasum", steps=steps, **arguments)
    made._lane = Lane()
    return made


def train(made, gradients, is_eager):
    """Returns the variable after each gradient was applied."""
    if is_eager:
        v, values = tf.Variable(START), []
        for gradient in gradients:
            assert made.apply_gradients([(tf.constant(gradient), v)]) is None
            values.append(v.numpy())
        return values
    with tf.Graph().as_default(), tf1.Session() as session:
        v, fed = tf1.get_variable("v", initializer=START, use_resource=True), tf1.placeholder(tf.float32, [2])
        step = made.apply_gradients([(fed, v)])
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        return [(session.run(step, {fed: gradient}), session.run(v))[1] for gradient in gradients]


@pytest.mark.parametrize("is_eager", [True, False])
def test_the_changes_of_variables_are_combined_after_each_step(is_eager):
    wanted = [START]
    for gradient in OWN:
        wanted.append(wanted[-1] + adasum(-0.5 * gradient, OTHERS))
    np.testing.assert_allclose(train(optimizer(), OWN, is_eager), wanted[1:], rtol=1e-5)


@pytest.mark.parametrize("is_eager", [True, False])
def test_ranks_train_apart_between_every_second_step(is_eager):
    first = START - 0.5 * OWN[0]
    second = START + adasum(-0.5 * OWN[:2].sum(0), OTHERS)
    third = second - 0.5 * OWN[2]
    fourth = second + adasum(-0.5 * OWN[2:].sum(0), OTHERS)
    np.testing.assert_allclose(train(optimizer(2), OWN, is_eager), [first, second, third, fourth], rtol=1e-5)


def test_slots_are_those_of_the_wrapped_optimizer():
    inner = tf1.train.MomentumOptimizer(0.5, 0.9)
    made = optimizer(inner=inner)
    v = tf.Variable(START)
    made.apply_gradients([(tf.constant(OWN[0]), v)])
    assert made.get_slot_names() == ["momentum"]
    np.testing.assert_array_equal(made.get_slot(v, "momentum"), OWN[0])
    assert [id(x) for x in made.variables()] == [id(x) for x in inner.variables()]


def test_changes_of_local_variables_and_of_those_without_a_gradient_are_not_sent():
    made = optimizer()
    shared, local, unused = (tf.Variable(START) for _ in range(3))
    made.register_local_var(local)
    made.apply_gradients([(tf.constant(OWN[0]), shared), (tf.constant(OWN[0]), local), (None, unused)])
    assert made._lane.changes == ["adasum/change_0"]
    assert made._lane.agreed == [[2, 1]]
    np.testing.assert_allclose(local, START - 0.5 * OWN[0])


def test_a_compressor_handles_the_changes():
    class Half:
        def compress(self, tensor):
            return tf.cast(tensor, tf.float16), tensor.dtype

        def decompress(self, tensor, dtype):
            assert tensor.dtype == tf.float16
            return tf.cast(tensor, dtype)

    (got,) = train(optimizer(compression=Half()), OWN[:1], True)
    np.testing.assert_allclose(got, START + adasum(-0.5 * OWN[0], OTHERS), rtol=1e-3)


def test_steps_are_at_least_one_and_of_the_variables_of_the_first_call():
    with pytest.raises(ValueError, match="adasum: got 0 passes, wanted at least 1"):
        optimizer(0)
    made = optimizer(2)
    made.apply_gradients([(tf.constant(OWN[0]), tf.Variable(START))])
    with pytest.raises(ValueError, match=r"adasum: got gradients of later:0, wanted only variables of the first call"):
        made.apply_gradients([(tf.constant(OWN[0]), tf.Variable(START, name="later"))])
