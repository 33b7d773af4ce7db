"""Tests of feature columns over dynamic tables against TensorFlow's columns over a vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc

from lockstep import embedding
from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing import call_workers

tf1 = tf.compat.v1
KEYS = 9
BATCH = 6
STEPS = 4
WIDTH = 3
# Key k of the vocabulary is number SPREAD[k] or word WORDS[k].
SPREAD = np.array([0, 5, 10**12, 77, 3, 2**40, 1000, 42, 7])
WORDS = np.array([f"word {k}" for k in range(KEYS)])


def _batches(seed, worker=None, workers=1):
    """Returns sparse features of some steps; a worker gets its part of the rows."""
    random = np.random.default_rng(seed)
    steps = []
    for _ in range(STEPS):
        lengths = random.integers(0, 4, [2, BATCH])
        features = {}
        for name, feature in zip("ab", lengths, strict=True):
            ids = random.integers(0, KEYS, feature.sum())
            weights = random.uniform(-0.3, 2, feature.sum()).astype(np.float32)
            features[name] = (feature, ids, weights)
        steps.append(features)
    if worker is None:
        return steps
    rows = np.array_split(np.arange(BATCH), workers)[worker]
    return [{name: _part(*feature, rows) for name, feature in step.items()} for step in steps]


def _part(lengths, ids, weights, rows):
    taken = np.isin(np.repeat(np.arange(len(lengths)), lengths), rows)
    return lengths[rows], ids[taken], weights[taken]


class Feed:
    """Placeholders of the two features and of their weights, and the values that are fed to them."""

    def __init__(self, keys):
        self._keys = keys
        dtype = tf.as_dtype(keys.dtype) if keys.dtype.kind == "i" else tf.string
        self.features = {}
        for name in "ab":
            self.features[name] = tf1.sparse_placeholder(dtype, [None, None], name)
            self.features[f"{name}_weight"] = tf1.sparse_placeholder(tf.float32, [None, None], f"{name}_weight")

    def of(self, step):
        fed = {}
        for name, (lengths, ids, weights) in step.items():
            rows = np.repeat(np.arange(len(lengths)), lengths)
            places = np.concatenate([[], *(np.arange(n) for n in lengths)])
            indices = np.stack([rows, places], 1).astype(np.int64)
            shape = [len(lengths), max([*lengths, 1])]
            fed[self.features[name]] = (indices, self._keys[ids], shape)
            fed[self.features[f"{name}_weight"]] = (indices, weights, shape)
        return fed


def _plain(keys):
    """Returns a function from a feature's name to TensorFlow's column over the vocabulary."""
    if keys.dtype.kind == "i":
        return lambda name: tf1.feature_column.categorical_column_with_vocabulary_list(name, [int(k) for k in keys])
    return lambda name: tf1.feature_column.categorical_column_with_vocabulary_list(name, list(keys))


def _dynamic(keys):
    dtype = tf.int64 if keys.dtype.kind == "i" else tf.string
    return lambda name: embedding.categorical_column_with_embedding(name, dtype=dtype)


def _separate(categorical):
    """Returns columns with different combiners; one is weighted, another one clips its rows."""
    weighted = tf1.feature_column.weighted_categorical_column(categorical("b"), "b_weight")
    ones = tf1.initializers.ones()
    with embedding.group_embedding_column_scope("group"):
        return [
            embedding.embedding_column(categorical("a"), WIDTH, "sqrtn", ones, max_norm=1.5),
            embedding.embedding_column(weighted, WIDTH, "mean", ones, do_fusion=True),
        ]


def _weighted_sum(categorical):
    weighted = tf1.feature_column.weighted_categorical_column(categorical("a"), "a_weight")
    return [embedding.embedding_column(weighted, WIDTH, "sum", tf1.initializers.ones())]


def _shared(categorical):
    return embedding.shared_embedding_columns(
        [categorical("b"), categorical("a")], WIDTH, initializer=tf1.initializers.ones()
    )


LAYOUTS = {"separate": _separate, "weighted sum": _weighted_sum, "shared": _shared}


def _train(layout, categorical, keys, batches):
    """Returns the output of the input layer in each step, and trains."""
    with tf.Graph().as_default(), scope(), tf1.Session() as session:
        feed = Feed(keys)
        with embedding_scope():
            layer = tf1.feature_column.input_layer(feed.features, LAYOUTS[layout](categorical))
        targets = tf.range(tf.cast(tf.shape(layer)[1], tf.float32))
        loss = tf.reduce_mean(tf.square(layer - targets))
        train_op = tf1.train.AdagradOptimizer(0.3).minimize(loss)
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        outputs = []
        for step in batches:
            # It has a run of its own: an update in the same run may come before or after the lookup.
            outputs.append(session.run(layer, feed.of(step)))
            session.run(train_op, feed.of(step))
        return outputs


def _equal(outputs, expected):
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=2e-5, atol=1e-6)


# Promise (deeprec.md): feature columns without a vocabulary train as TensorFlow's over a vocabulary: combiners,
# weights, norms, shared tables, integers and strings.
@pytest.mark.parametrize("keys", [SPREAD, WORDS], ids=["integers", "strings"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_that_grows_is_read_and_trained_as_one_with_a_vocabulary(layout, keys):
    expected = _train(layout, _plain(keys), keys, _batches(0))
    assert not np.allclose(expected[0], expected[-1])
    _equal(_train(layout, _dynamic(keys), keys, _batches(0)), expected)


def _on_a_worker(layout):
    own = _batches(1, context.rank, context.world_size)
    return _train(layout, _dynamic(SPREAD), SPREAD, own)


# Promise (deeprec.md): feature columns without a vocabulary train as TensorFlow's over a vocabulary: combiners,
# weights, norms, shared tables, integers and strings.
@pytest.mark.workers
@pytest.mark.parametrize("layout", ["separate", "shared"])
def test_two_workers_train_as_one_process_on_the_rows_of_both(layout):
    expected = _train(layout, _plain(SPREAD), SPREAD, _batches(1))
    outputs = call_workers(_on_a_worker, 2, layout, timeout_s=120)
    _equal([np.concatenate(parts) for parts in zip(*outputs, strict=True)], expected)


# Promise (deeprec.md): sequence columns keep the rows of an example; missing values are skipped; misfits are refused.
def test_minus_one_and_the_empty_string_of_dense_features_are_no_values():
    with tf.Graph().as_default(), tf1.Session() as session:
        features = {"n": tf.constant([[3, -1], [-1, -1], [4, 4]]), "s": tf.constant([["x", ""], ["", ""], ["y", "x"]])}
        columns = [
            embedding.embedding_column(embedding.categorical_column_with_embedding(name, dtype), 2, "sum", ones)
            for name, dtype, ones in (
                ("n", tf.int64, tf1.initializers.ones()),
                ("s", tf.string, tf1.initializers.ones()),
            )
        ]
        layer = tf1.feature_column.input_layer(features, columns)
        session.run(tf1.global_variables_initializer())
        values = session.run(layer)
    np.testing.assert_array_equal(values, [[1, 1, 1, 1], [0, 0, 0, 0], [2, 2, 2, 2]])


@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
def test_ids_below_0_are_no_values(combiner):
    indices, shape = [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]], [3, 2]
    features = {
        "ids": tf.SparseTensor(indices, tf.constant([3, -1, -7, 5, 3], tf.int64), shape),
        "weights": tf.SparseTensor(indices, [0.5, 2.0, 1.0, 2.0, -1.0], shape),
    }
    values = []
    with tf.Graph().as_default(), tf1.Session() as session:
        features = tf.nest.map_structure(lambda t: tf.constant(t.numpy()), features, expand_composites=True)
        for ids in (
            tf1.feature_column.categorical_column_with_identity("ids", 9),
            embedding.categorical_column_with_embedding("ids", tf.int64),
        ):
            weighted = tf1.feature_column.weighted_categorical_column(ids, "weights")
            columns = [embedding.embedding_column(c, 2, combiner, tf1.initializers.ones()) for c in (ids, weighted)]
            with tf1.variable_scope(None, "layer"):
                values.append(tf1.feature_column.input_layer(features, columns))
        session.run(tf1.global_variables_initializer())
        values = session.run(values)
    np.testing.assert_allclose(values[1], values[0], rtol=1e-6)


# Promise (deeprec.md): sequence columns keep the rows of an example; missing values are skipped; misfits are refused.
def test_sequences_keep_the_rows_of_an_example():
    with tf.Graph().as_default(), tf1.Session() as session:
        features = {"s": tf.ragged.constant([[10**12, 7], [], [7]], dtype=tf.int64).to_sparse()}
        categorical = embedding.sequence_categorical_column_with_embedding("s", tf.int64)
        column = embedding.embedding_column(categorical, 2, initializer=tf1.initializers.ones())
        with tf1.variable_scope("v1"):
            of_graphs = column._get_sequence_dense_tensor(fc_v1._LazyBuilder(features))
        with tf1.variable_scope("layer"):
            state = fc._StateManagerImpl(None, trainable=True)
            column.create_state(state)
            of_layers = column.get_sequence_dense_tensor(fc.FeatureTransformationCache(features), state)
        session.run(tf1.global_variables_initializer())
        for rows, lengths in session.run([of_graphs, of_layers]):
            np.testing.assert_array_equal(lengths, [2, 0, 1])
            np.testing.assert_array_equal(rows[..., 0], [[1, 1], [0, 0], [1, 0]])


def test_other_columns_are_tensorflows():
    identity = tf1.feature_column.categorical_column_with_identity("x", 4)
    assert type(embedding.embedding_column(identity, 2)) is fc.EmbeddingColumn
    with tf.Graph().as_default():
        (column,) = embedding.shared_embedding_columns([identity], 2)
        assert type(column) is fc_v1._SharedEmbeddingColumn


GROWING = embedding.categorical_column_with_embedding("x", tf.int64)


# Promise (deeprec.md): sequence columns keep the rows of an example; missing values are skipped; misfits are refused.
@pytest.mark.parametrize(
    ("column", "ids", "message"),
    [
        (
            tf1.feature_column.embedding_column(GROWING, 2),
            np.int64([[1]]),
            "column 'x': a dynamic table has no fixed num_buckets",
        ),
        (
            tf1.feature_column.indicator_column(GROWING),
            np.int64([[1]]),
            "column 'x': a dynamic table has no fixed num_buckets",
        ),
        (embedding.embedding_column(GROWING, 2), [["a"]], "column 'x': got string, wanted int64"),
    ],
    ids=["TensorFlow's embedding", "indicator", "strings"],
)
def test_what_does_not_fit_is_refused(column, ids, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tf1.feature_column.input_layer({"x": tf.constant(ids)}, [column])


def _group():
    with embedding.group_embedding_column_scope(7):
        pass


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: embedding.categorical_column_with_embedding("y", tf.float32),
            ValueError,
            "column 'y' has dtype float32, wanted int32, int64, string",
        ),
        (
            lambda: embedding.categorical_column_with_embedding("y", partition_num=0),
            ValueError,
            "column 'y' has partition_num 0",
        ),
        (
            lambda: embedding.embedding_column(GROWING, 2, ckpt_to_load_from="c", tensor_name_in_ckpt="t"),
            NotImplementedError,
            "ckpt_to_load_from is 'c', wanted None",
        ),
        (
            lambda: embedding.shared_embedding_columns([GROWING, embedding.categorical_column_with_embedding("y")], 2),
            ValueError,
            "columns x, y cannot share a table",
        ),
        (_group, TypeError, "name is 7"),
    ],
    ids=["type", "partitions", "checkpoint", "other types", "name"],
)
def test_arguments_that_do_not_fit_are_refused(make, error, message):
    with tf.Graph().as_default(), pytest.raises(error, match=message):
        make()


def test_shared_columns_are_refused_under_eager_execution():
    with pytest.raises(RuntimeError, match="in graphs"):
        embedding.shared_embedding_columns([GROWING], 2)
