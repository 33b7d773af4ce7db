"""Tests that errors begin with the operation's own text, wherever it ran, and that the places follow."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python.eager import core
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import error_interpolation

from lockstep._src.engine import error_messages
from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing import call_workers

SAID = "rank 0: table 'items{}': id 99 at position 0 of the lookup is out of range: the table has rows [0, 10)"


def texts_of_functions():
    """Returns the errors of a lookup that fails: eagerly, in functions, and in Keras' fit."""
    keras, texts = tf.keras, {}
    with scope(), embedding_scope():
        layer = keras.layers.Embedding(10, 4, name="items")
        layer.build([None])
        table = layer.embeddings._value

        def look(ids):
            return tf.nn.embedding_lookup(table, ids)

        function = tf.function(look)
        anonymous = tf.function(lambda ids: look(ids))
        model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        ids = tf.constant([[99]])
        calls = {
            "eager": lambda: look(ids),
            "function": lambda: function(ids),
            "anonymous": lambda: anonymous(ids),
            "nested": lambda: tf.function(lambda: anonymous(ids) + function(ids))(),
            "fit": lambda: model.fit(ids, tf.ones([1, 1]), verbose=0),
        }
        for name, call in calls.items():
            with pytest.raises(tf.errors.InvalidArgumentError) as raised:
                call()
            texts[name] = str(raised.value)
    return texts


def text_of_session():
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), scope():
        with embedding_scope():
            table = tf1.get_variable("items", [10, 4])
        rows = tf.nn.embedding_lookup(table, tf.constant([99]))
        with tf1.train.MonitoredTrainingSession() as session, pytest.raises(tf.errors.InvalidArgumentError) as raised:
            session.run(rows)
    return str(raised.value), raised.value.op.name


def in_a_job():
    before = _replaced()
    found = text_of_session(), texts_of_functions() if tf.keras.__version__.startswith("3") else {}
    assert _replaced() != before
    context.shutdown()
    assert _replaced() == before
    return found


def _replaced():
    return (
        core._status_to_exception,
        error_interpolation.interpolate_graph,
        atomic_function.InterpolateRuntimeError.__exit__,
    )


@pytest.mark.workers
@pytest.mark.newest_only
def test_errors_begin_with_our_sentence_and_end_with_the_place():
    ((of_session, operation), of_functions), _ = call_workers(in_a_job, 2, timeout_s=120)
    assert of_session.startswith(SAID.format(""))
    assert "error_messages_test.py" in of_session and "LockstepRoute" in operation
    assert of_functions.keys() == {"eager", "function", "anonymous", "nested", "fit"}
    for text in of_functions.values():
        assert text.startswith(SAID.format("/embeddings")), text
    for name in ("function", "fit"):
        assert "error_messages_test.py" in of_functions[name]


@pytest.mark.parametrize(
    "message",
    [
        "it failed",
        "it failed [Op:Cast] name: x",
        "{{function_node __inference_f_1}} {{function_node __inference_g_2}} it failed\n\t [[{{node Cast}}]]",
        "it failed\n\t [[{{function_node __inference_f_1}}{{node Cast}}]]\n\nGraph execution error:\n\n",
        "2 root error(s) found.\n  (0) INVALID_ARGUMENT: it failed\n\t [[{{node a}}]]\n  (1) INTERNAL: other",
    ],
)
def test_the_sentence_is_what_the_operation_said(message):
    assert error_messages.sentence(message) == "it failed"
