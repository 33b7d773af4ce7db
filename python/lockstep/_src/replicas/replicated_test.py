"""Tests that replicated variables begin with worker 0's values, however they are initialized."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.replicas import replicated
from lockstep._src.scope import scope
from lockstep.testing import call_workers
from lockstep.testing.replaced import HAS_KERAS_3

v1 = tf.compat.v1
LOCAL = [v1.GraphKeys.LOCAL_VARIABLES]


def of_rank(name, **kwargs):
    """Makes a variable that each worker begins with its rank + 1."""
    return v1.get_variable(name, initializer=tf.fill([2], context.rank + 1.0), **kwargs)


def values_of_worker():
    """Returns this worker's values by the way in which they were made, and an error."""
    context.ensure_initialized()
    held = {}
    with tf.Graph().as_default(), v1.Session() as session:
        before = of_rank("before", use_resource=True)
        with scope():
            made = {
                "in a scope": of_rank("resource", use_resource=True),
                "reference": of_rank("reference", use_resource=False),
                "empty": v1.get_variable("empty", initializer=tf.zeros([0])),
                "local": of_rank("local", collections=LOCAL),
                "before the scope": before,
            }
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            held |= session.run(made)
            session.run([made["in a scope"].assign([7.0, 7.0]), before.assign([7.0, 7.0])])
            session.run(v1.variables_initializer([made["in a scope"]]))
            held["again"] = session.run(made["in a scope"])
            held["untouched"] = session.run(before)
            session.run(made["reference"].initializer)
            held["own value"] = session.run(made["in a scope"].initial_value)
        with scope(mode="infer"):
            inferred = of_rank("infer")
            session.run(inferred.initializer)
            held["infer"] = session.run(inferred)
    with tf.Graph().as_default(), v1.Session() as session:
        alike, local = of_rank("alike"), of_rank("local", collections=LOCAL)
        replicated.initialize_all_from_worker_0()
        replicated.initialize_all_from_worker_0()
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        held |= {"without a scope": session.run(alike), "local without a scope": session.run(local)}

    def make_one():
        return tf.Variable([1.0], name="eager")

    def of_checkpoint():
        return tf.train.Checkpoint().save_counter

    with scope():
        makers = {"error": make_one, "error in a function": tf.function(make_one), "checkpoint": of_checkpoint}
        for name, make in makers.items():
            try:
                make()
            except NotImplementedError as error:
                held[name] = str(error)
    return {name: value if isinstance(value, str) else value.tolist() for name, value in held.items()}


@functools.cache
def on_workers():
    return call_workers(values_of_worker, 2, timeout_s=120)


@pytest.mark.workers
@pytest.mark.parametrize("name", ["in a scope", "reference", "before the scope", "again", "without a scope"])
def test_all_workers_begin_with_the_value_of_worker_0(name):
    assert [held[name] for held in on_workers()] == [[1.0, 1.0]] * 2


@pytest.mark.workers
@pytest.mark.parametrize("name", ["local", "own value", "infer", "local without a scope"])
def test_other_values_stay_the_workers_own(name):
    assert [held[name] for held in on_workers()] == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.workers
@pytest.mark.parametrize(("name", "value"), [("empty", []), ("untouched", [7.0, 7.0])])
def test_variables_without_elements_and_those_that_are_not_initialized_stay_as_they_are(name, value):
    assert [held[name] for held in on_workers()] == [value] * 2


@pytest.mark.workers
@pytest.mark.parametrize("name", ["error", "error in a function"])
def test_an_eager_variable_of_the_program_is_refused(name):
    for held in on_workers():
        assert "variable 'eager': inside a scope a job of 2 workers trains graphs" in held[name]
        assert "call tf.compat.v1.disable_eager_execution() first" in held[name]
        advice = "Use keras.Variable, or a layer's add_weight, outside of a tf.function"
        assert (advice if HAS_KERAS_3 else "This program has loaded Keras 2") in held[name]


@pytest.mark.workers
def test_the_counter_of_a_checkpoint_is_refused_by_the_way_to_save():
    for held in on_workers():
        assert (
            "It belongs to a tf.train.Checkpoint; use save_weights of the model, or model.save." in held["checkpoint"]
        )


def test_one_worker_makes_variables_as_without_a_scope():
    with tf.Graph().as_default() as graph, v1.Session() as session:
        with scope():
            variable = of_rank("variable")
            session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(variable), [1.0, 1.0])
        assert not [op.type for op in graph.get_operations() if op.type.startswith("Lockstep")]
