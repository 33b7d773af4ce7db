"""Tests that tables are made and shared by name as variables of TensorFlow 1 are, and which errors refuse them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.tables.dynamic import EmbeddingVariableOption, InitializerOption, dynamic_tables
from lockstep._src.tables.dynamic.creation import get_embedding_variable, make_table, tables_made_by

v1 = tf.compat.v1
DIM = 3


@pytest.fixture(name="graph")
def _graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_names_are_those_of_variable_scopes(graph):
    with v1.variable_scope("deep"), tf.name_scope("not_in_the_name"):
        table = get_embedding_variable("user", DIM)
        with pytest.raises(ValueError, match=r"Table deep/user already exists.*AUTO_REUSE"):
            get_embedding_variable("user", DIM)
    with v1.variable_scope("deep", reuse=v1.AUTO_REUSE):
        assert get_embedding_variable("user", DIM) is table
        other = get_embedding_variable("item", DIM)
    assert table.op.name == "deep/user" and table in v1.trainable_variables()
    assert dynamic_tables() == [table, other]


@pytest.mark.parametrize("reuse", [True, v1.AUTO_REUSE], ids=["reuse", "auto reuse"])
@pytest.mark.parametrize(
    ("dim", "types"),
    [(DIM + 1, {}), (DIM, {"key_dtype": tf.string}), (DIM, {"value_dtype": tf.float16})],
    ids=["dimension", "keys", "rows"],
)
def test_a_table_of_the_name_with_another_shape_is_not_shared(graph, reuse, dim, types):
    get_embedding_variable("user", DIM)
    with (
        v1.variable_scope("", reuse=reuse),
        pytest.raises(ValueError, match=rf"Trying to share table user, .*\({dim}, .* and found \({DIM}, tf.int64"),
    ):
        get_embedding_variable("user", dim, **types)


def test_reuse_of_a_table_that_does_not_exist_is_refused(graph):
    with v1.variable_scope("deep", reuse=True), pytest.raises(ValueError, match="Table deep/user does not exist"):
        get_embedding_variable("user", DIM)


def test_each_call_makes_a_table_under_eager_execution():
    first, second = (get_embedding_variable("user", DIM, initializer=value) for value in (1.0, 2.0))
    assert float(first.sparse_read([1])[0, 0]) == 1.0 and float(second.sparse_read([1])[0, 0]) == 2.0


def test_a_function_cannot_make_a_table():
    with pytest.raises(ValueError, match="table 'user': made in a tf.function.*create the table outside"):
        tf.function(lambda: get_embedding_variable("user", DIM).sparse_read([1]))()


@pytest.mark.parametrize(
    ("arguments", "options", "first"),
    [
        ({"initializer": 1.0}, 2.0, 1.0),
        ({}, 2.0, 2.0),
        ({}, None, 3.0),
    ],
    ids=["argument", "options", "variable scope"],
)
def test_the_initializer_is_the_arguments_or_the_options_or_the_scopes(graph, arguments, options, first):
    option = EmbeddingVariableOption(init_option=InitializerOption(options))
    with v1.variable_scope("deep", initializer=v1.constant_initializer(3.0)), v1.Session() as session:
        table = get_embedding_variable("user", DIM, ev_option=option, **arguments)
        session.run(table.initializer)
        np.testing.assert_array_equal(session.run(table.sparse_read([1])), np.full([1, DIM], first))


def test_a_table_joins_the_collections_that_it_is_given(graph):
    table = get_embedding_variable("user", DIM, trainable=False, collections=["mine"])
    assert graph.get_collection("mine") == [table] == dynamic_tables()
    assert not v1.global_variables() and not v1.trainable_variables()


@pytest.mark.parametrize("argument", ["regularizer", "custom_getter", "constraint", "init_data_source"])
def test_an_argument_that_must_be_none_is_refused_by_name(argument):
    with pytest.raises(NotImplementedError, match=f"table 'user': got a {argument}, wanted None"):
        get_embedding_variable("user", DIM, **{argument: tf.nn.relu})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"key_dtype": tf.float32}, TypeError, "table 'user': keys are float32, wanted int64, int32 or string"),
        ({"value_dtype": tf.int32}, TypeError, "table 'user': rows are int32, wanted float32, float16 or bfloat16"),
        ({"embedding_dim": 0}, ValueError, "table 'user': dimension is 0, wanted a number of at least 1"),
        ({"embedding_dim": 2.0}, ValueError, "table 'user': dimension is 2.0, wanted a number of at least 1"),
    ],
    ids=["keys", "rows", "0", "2.0"],
)
def test_wrong_types_and_dimensions_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        get_embedding_variable("user", **{"embedding_dim": DIM, **arguments})


def test_another_maker_makes_the_tables_of_its_block_and_thread():
    asked = []

    def other(*args, **kwargs):
        asked.append((args, kwargs))
        return "made"

    elsewhere = []
    with tables_made_by(other):
        assert make_table("user", DIM, trainable=False) == "made"
        thread = threading.Thread(target=lambda: elsewhere.append(make_table("item", DIM)))
        thread.start()
        thread.join()
    assert asked == [(("user", DIM), {"trainable": False})]
    assert elsewhere[0].logical_name == "item"
    assert make_table("user", DIM).logical_name == "user"
