"""Tests of the layers of SOK 1.x in one process, in Keras 3 and Keras 2."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import any_keras, embedding_tables, job, layer_lookups, native_optimizers, rows, version_1
from lockstep._src.compat.sok.any_keras_test import keras_2
from lockstep._src.compat.sok.initializers import InPlaceInitializer
from lockstep._src.compat.sok.layers import All2AllDenseEmbedding, DistributedEmbedding
from lockstep._src.compat.sok.tf_embedding import TFDistributedEmbedding

tf_keras = keras_2()
BATCH = 4
KERAS = {"Keras of TensorFlow": tf.keras, "Keras 2": tf_keras}


@pytest.fixture(autouse=True)
def started(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    monkeypatch.setattr(version_1, "_program", version_1._Program(BATCH, None))
    monkeypatch.setattr(embedding_tables, "_names", {})


@pytest.fixture(params=KERAS)
def keras(request):
    with any_keras.using(KERAS[request.param]):
        yield KERAS[request.param]


def sparse(examples, key_dtype=tf.int64):
    """Returns keys by row."""
    pairs = [(row, key) for row, keys in examples.items() for key in keys]
    indices = tf.constant([[row, i] for i, (row, _) in enumerate(pairs)], tf.int64, [len(pairs), 2])
    return tf.SparseTensor(indices, tf.constant([key for _, key in pairs], key_dtype), [8, 9])


def dense(count=16, start=0):
    return tf.reshape(tf.range(start, start + count, dtype=tf.int64), [-1, 2, 2])


def count_of(layer):
    return int(layer.embedding_variable.total_count())


def message_of(error):
    # TensorFlow escapes quotes in messages of operations.
    return error.value.message.replace("\\'", "'")


# Keys.


def test_lookup_that_does_not_train_adds_no_keys_and_reads_zeros(keras):
    layer = DistributedEmbedding("mean", 20, 3, slot_num=2, max_nnz=3)
    keys = sparse({0: [1, 2], 5: [-7]})
    np.testing.assert_array_equal(layer(keys, training=False), np.zeros([4, 2, 3]))
    assert count_of(layer) == 0
    first = layer(keys)
    assert count_of(layer) == 3
    np.testing.assert_array_equal(layer(keys, training=False), first)
    assert (np.abs(first[0, 0]) > 0).all()
    assert (np.abs(first) <= 0.05).all()


def test_rows_that_begin_with_a_constant_read_it_before_they_exist():
    layer = All2AllDenseEmbedding(20, 3, 2, 2, embedding_initializer="ones")
    np.testing.assert_array_equal(layer(dense(), training=False), np.ones([4, 2, 2, 3]))
    assert count_of(layer) == 0


def test_model_passes_on_whether_it_trains(keras):
    layer = All2AllDenseEmbedding(20, 3, 2, 2)
    model = keras.Sequential([keras.Input((2, 2), dtype="int64"), layer])
    model.predict(dense(), verbose=0)
    assert count_of(layer) == 0
    model(dense(), training=True)
    assert count_of(layer) == 16


@pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "function"])
def test_more_keys_than_the_capacity_are_an_error(run):
    layer = All2AllDenseEmbedding(16, 3, 2, 2)
    lookup = run(lambda keys: layer(keys))
    lookup(dense())
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        lookup(dense(start=3))
    for text in ("table 'EmbeddingVariable': rank 0 has more keys than max_vocabulary", "wanted at most 16, got", "19"):
        assert text in message_of(error)


def test_keys_of_an_indexed_table_have_a_range():
    layer = All2AllDenseEmbedding(15, 3, 2, 2, use_hashtable=False)
    layer(dense(12))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"EmbeddingVariable.*15.*\[0, 15\)"):
        layer(dense())


def test_keys_have_the_type_that_the_layer_says():
    layer = All2AllDenseEmbedding(20, 3, 2, 2, key_dtype="uint32")
    big = tf.fill([1, 2, 2], tf.constant(2**32 - 2, tf.uint32))
    layer(big)
    np.testing.assert_array_equal(rows.read(layer.embedding_variable)[0], [2**32 - 2])
    with pytest.raises(TypeError, match="table 'EmbeddingVariable': keys are int64, wanted uint32"):
        layer_lookups.lookup_dense(layer.embedding_variable, dense())
    with pytest.raises(TypeError, match=r"keys are float32, .* needs keras.Input\(..., dtype='uint32'\)"):
        layer_lookups.lookup_dense(layer.embedding_variable, tf.zeros([1, 2, 2]))
    with pytest.raises(TypeError, match="key_dtype is int32, wanted int64 or uint32"):
        All2AllDenseEmbedding(20, 3, 2, 2, key_dtype=tf.int32)


# Batches.


def test_examples_without_keys_are_zeros_and_a_batch_has_a_fixed_size(keras):
    layer = DistributedEmbedding("Sum", 20, 3, slot_num=2, max_nnz=1, embedding_initializer="ones")
    assert layer.combiner == "sum"
    found = layer(sparse({1: [5, 5], 2: [6]}))
    wanted = np.zeros([4, 2, 3])
    wanted[0, 1], wanted[1, 0] = 2, 1
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(layer(sparse({})), np.zeros([4, 2, 3]))


@pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "function"])
def test_rows_beyond_the_batch_are_an_error(run):
    layer = DistributedEmbedding("sum", 20, 3, slot_num=2, max_nnz=1)
    lookup = run(lambda keys: layer_lookups.lookup_sparse(layer.embedding_variable, keys, 2))
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        lookup(sparse({0: [1], 8: [5]}))
    assert "'EmbeddingVariable': sp_ids have more rows than a rank's batch has slots, which is" in message_of(error)
    with pytest.raises(tf.errors.InvalidArgumentError, match="have to be sorted"):
        lookup(sparse({3: [1], 0: [5]}))


def test_inputs_of_another_kind_are_refused():
    pooled = DistributedEmbedding("sum", 20, 3, slot_num=2, max_nnz=1).embedding_variable
    with pytest.raises(TypeError, match="sp_ids must be SparseTensor"):
        layer_lookups.lookup_sparse(pooled, dense(), 2)
    table = All2AllDenseEmbedding(20, 3, 2, 2).embedding_variable
    with pytest.raises(TypeError, match="values must be a tensor"):
        layer_lookups.lookup_dense(table, sparse({0: [1]}))
    with pytest.raises(ValueError, match=r"shape \(16,\), wanted \[batch, slot_num, nnz_per_slot\]"):
        layer_lookups.lookup_dense(table, tf.reshape(dense(), [-1]))
    with pytest.raises(ValueError, match=r"shape \(4, 2, 2\), wanted \[keys\], as dynamic_input is True"):
        layer_lookups.lookup_dense(table, dense(), dynamic_input=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistributedEmbedding("max", 20, 3, 2, 1), "combiner is 'max', wanted 'sum' or 'mean'"),
        (lambda: DistributedEmbedding("sum", 20, 3, 0, 1), "slot_num must be >= 1: got 0"),
        (lambda: DistributedEmbedding("sum", 20, 3, 2, 0), "max_nnz must be >= 1: got 0"),
        (lambda: DistributedEmbedding("sum", 20, 3, 2, 2, max_feature_num=5), "got 5, wanted at most 4"),
        (lambda: All2AllDenseEmbedding(20, 3, 2, 0), "nnz_per_slot must be >= 1: got 0"),
        (
            lambda: All2AllDenseEmbedding(0, 3, 2, 1),
            r"vocabulary_size_per_gpu, embedding_vector_size\]: got \[0, 3\]",
        ),
        (lambda: All2AllDenseEmbedding(20, 3.5, 2, 1), r"got \[20, 3.5\]"),
        (
            lambda: TFDistributedEmbedding(3, 2, np.zeros([2, 3])),
            r"The shape of initializer must be \[vocabulary_size, embedding_vec_size\]: got \(2, 3\), wanted \(3, 2\)",
        ),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_layers_need_init(monkeypatch):
    monkeypatch.setattr(version_1, "_program", None)
    with pytest.raises(RuntimeError, match=r"sok\.Init was not called"):
        All2AllDenseEmbedding(20, 3, 2, 1)


# Initial values.


def test_two_layers_of_one_shape_have_a_table_each():
    one, other = (All2AllDenseEmbedding(20, 3, 2, 2) for _ in range(2))
    assert one.embedding_variable.m_var_name == "EmbeddingVariable"
    assert other.embedding_variable.values[0].m_var_name == "EmbeddingVariable_1"
    assert np.abs(one(dense()) - other(dense())).max() > 1e-3


@pytest.mark.parametrize("hashed", [True, False])
def test_initializers(keras, hashed):
    def rows_of(initializer):
        layer = All2AllDenseEmbedding(16, 3, 2, 2, use_hashtable=hashed, embedding_initializer=initializer)
        return layer(dense()).numpy().reshape(16, 3)

    whole = np.random.default_rng(2).normal(size=[16, 3]).astype(np.float32)
    np.testing.assert_array_equal(rows_of(keras.initializers.Constant(2.0)), np.full([16, 3], 2))
    np.testing.assert_array_equal(rows_of(InPlaceInitializer(name="ones")), np.ones([16, 3]))
    np.testing.assert_array_equal(rows_of(lambda shape, dtype=None: tf.constant(whole)), whole)
    drawn = rows_of(keras.initializers.RandomNormal(1.0, 0.01))
    assert 0 < np.abs(drawn - 1).max() < 0.1
    assert len(np.unique(drawn)) == drawn.size
    with pytest.raises(ValueError, match="InPlaceInitializer: name is 'twos', wanted one of random_uniform, ones, ze"):
        rows_of(InPlaceInitializer(name="twos"))
    assert InPlaceInitializer.deserialize(InPlaceInitializer(name="ones").serialize()).name == "ones"


def test_seed_of_init_decides_random_rows(monkeypatch):
    tf.random.set_seed(1234)

    def rows_with(seed):
        monkeypatch.setattr(version_1, "_program", version_1._Program(BATCH, seed))
        monkeypatch.setattr(embedding_tables, "_names", {})
        return All2AllDenseEmbedding(16, 3, 2, 2)(dense()).numpy()

    np.testing.assert_array_equal(rows_with(0), rows_with(0))
    assert len({rows_with(seed)[0, 0, 0, 0] for seed in (None, 0, 1)}) == 3


# Keras.


def test_layers_are_those_of_the_programs_keras(keras):
    class Mine(All2AllDenseEmbedding):
        def __init__(self):
            super().__init__(20, 3, 2, 2, name="mine")

    layer = Mine()
    assert isinstance(layer, keras.layers.Layer)
    assert isinstance(layer, All2AllDenseEmbedding)
    assert (type(layer).__name__, layer.name) == ("Mine", "mine")
    assert layer.var is layer.embedding_variable
    assert layer.emb_layer is layer.embedding_variable.embedding_layer
    for copy_or_pickle in (copy.deepcopy, pickle.dumps):
        with pytest.raises(NotImplementedError, match="table 'EmbeddingVariable' cannot be"):
            copy_or_pickle(layer.var)
    with pytest.raises(ValueError, match="EmbeddingLayer for EmbeddingVariable is already set"):
        layer.var.set_embedding_layer(layer.emb_layer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DistributedEmbedding("mean", 20, 3, 2, 4, 5, False, "uint32", "ones", name="mine"),
        lambda: All2AllDenseEmbedding(20, 3, 2, 2, True, embedding_initializer=tf.keras.initializers.Constant(2.0)),
        lambda: TFDistributedEmbedding(20, 3),
    ],
)
def test_config_makes_an_equal_layer(make):
    layer = make()
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.trainable_variables[0] is not layer.trainable_variables[0]


def test_models_train_tables_and_other_weights(keras):
    layers = [DistributedEmbedding("sum", 20, 3, 2, 3), All2AllDenseEmbedding(20, 3, 2, 2, use_hashtable=False)]
    head = keras.layers.Dense(1, kernel_initializer="ones")

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers
            self.head = head

        def call(self, inputs, training=True):
            one = tf.reshape(self.first(inputs[0], training=training), [4, 6])
            other = tf.reshape(self.second(inputs[1], training=training), [4, 12])
            return self.head(tf.concat([one, other], 1))

    model = Model()
    inputs = [sparse({0: [1, 2], 5: [7], 7: [9]}), dense()]
    model(inputs, training=False)
    tables, others = version_1.split(model.trainable_variables)
    assert [getattr(v, "_value", v) for v in tables] == [layer.embedding_variable for layer in layers]
    assert len(others) == 2
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs))
    # Nested lists, as SOK's own examples have it.
    ours, theirs = tape.gradient(loss, [[layer.embedding_variable for layer in layers], others])
    assert all(isinstance(g, tf.IndexedSlices) for g in ours)
    assert [g.shape for g in theirs] == [(18, 1), (1,)]
    optimizer = keras.optimizers.SGD(0.5)
    before = [layer.embedding_variable for layer in layers]
    before = [rows.read(table)[1] for table in before]
    with native_optimizers.OptimizerScope(tables):
        optimizer.apply_gradients(zip(ours, tables, strict=True), experimental_aggregate_gradients=False)
    for layer, old, moved in zip(layers, before, (4, 16), strict=True):
        difference = rows.read(layer.embedding_variable)[1] - old
        np.testing.assert_allclose(difference[:moved], np.full([moved, 3], -0.5), atol=1e-6)


def test_fit_trains_a_table(keras, tmp_path):
    layer = All2AllDenseEmbedding(20, 3, 2, 2)
    parts = [keras.Input((2, 2), dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(parts)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    history = model.fit(dense().numpy(), np.ones([4, 1]), batch_size=4, epochs=10, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2
    assert count_of(layer) == 16
    with pytest.raises(NotImplementedError, match=r"Keras does not save tables of SOK; use sok\.Saver"):
        model.save_weights(str(tmp_path / "a.weights.h5"))


def test_functional_models(keras):
    if keras is tf_keras:
        pooled_input = keras.Input(type_spec=tf.SparseTensorSpec((8, 9), tf.int64))
        dense_input = keras.Input(type_spec=tf.TensorSpec((None, 2, 2), tf.int64))
    else:
        pooled_input = keras.Input(batch_shape=(8, 9), sparse=True, dtype="int64")
        dense_input = keras.Input((2, 2), dtype="int64")
    pooled, found = DistributedEmbedding("sum", 20, 3, 2, 3), All2AllDenseEmbedding(20, 3, 2, 2)
    outputs = [pooled(pooled_input), found(dense_input)]
    assert [tuple(output.shape) for output in outputs] == [(4, 2, 3), (None, 2, 2, 3)]
    model = keras.Model([pooled_input, dense_input], outputs)
    keys = sparse({0: [1, 2], 5: [7]})
    for output, layer, fed in zip(model([keys, dense()]), (pooled, found), (keys, dense()), strict=True):
        np.testing.assert_array_equal(output, layer(fed, training=False))
    assert len(version_1.split(model.trainable_variables)[0]) == 2


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_outputs_have_the_type_of_the_policy(keras, policy):
    pooled = DistributedEmbedding("mean", 20, 3, 2, 3, dtype=policy, embedding_initializer="ones")
    found = All2AllDenseEmbedding(20, 3, 2, 2, dtype=policy)
    with tf.GradientTape() as tape:
        outputs = pooled(sparse({0: [1, 2]})), found(dense())
        loss = tf.reduce_sum(outputs[0]) + tf.reduce_sum(outputs[1])
    assert {output.dtype for output in outputs} == {tf.as_dtype(policy.removeprefix("mixed_"))}
    for gradient in tape.gradient(loss, [pooled.var, found.var]):
        assert gradient.values.dtype == tf.float32


def test_strategy_with_one_replica(keras):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        layer = All2AllDenseEmbedding(20, 3, 2, 2, embedding_initializer="ones")
        optimizer = keras.optimizers.SGD(0.5)
    tables = [layer.embedding_variable]

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(keys))
        with native_optimizers.OptimizerScope(tables):
            gradients = tape.gradient(loss, tables)
            optimizer.apply_gradients(zip(gradients, tables, strict=True), experimental_aggregate_gradients=False)
        return loss

    assert strategy.run(step, (dense(),)) == 48
    assert strategy.reduce("sum", strategy.run(step, (dense(),)), axis=None) == 24


def test_layer_of_a_fixed_vocabulary(keras):
    layer = TFDistributedEmbedding(5, 3, name="fixed")
    found = layer(tf.constant([[4, 0], [4, 4]]), training=True)
    np.testing.assert_array_equal(found, layer.embedding_weights.numpy()[[[4, 0], [4, 4]]])
    layer.broadcast_variables()
    assert len(version_1.split(layer.trainable_variables)[0]) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"EmbeddingWeights.*5.*\[0, 5\)"):
        layer(tf.constant([5]))
    with pytest.raises(NotImplementedError, match="layer 'whole': get_config wants an initializer with a name"):
        TFDistributedEmbedding(2, 3, np.ones([2, 3]), name="whole").get_config()


def test_embedding_operations_take_a_layers_table():
    layer = All2AllDenseEmbedding(20, 3, 2, 2, embedding_initializer="ones")
    np.testing.assert_array_equal(layer_lookups.lookup_dense(layer.var, dense(), False), np.ones([4, 2, 2, 3]))
    alone = embedding_tables.EmbeddingVariable.CreateInstances(shape=[20, 3])
    with pytest.raises(ValueError, match="EmbeddingLayer for EmbeddingVariable_1 is not set"):
        layer_lookups.lookup_dense(alone, dense())
    with pytest.raises(ValueError, match="must be a list which represents"):
        embedding_tables.EmbeddingVariable.CreateInstances(shape=(20, 3))
    with pytest.raises(TypeError, match="dtype is float16, wanted float32"):
        embedding_tables.EmbeddingVariable.CreateInstances(shape=[20, 3], dtype=tf.float16)
    with pytest.raises(TypeError, match="training: got .*, wanted True or False"):
        tf.function(lambda t: layer_lookups.lookup_dense(layer.var, dense(), t))(tf.constant(True))
    assert layer_lookups.global_replica_id("Horovod") == 0
    with pytest.raises(RuntimeError, match="can only works with"):
        layer_lookups.global_replica_id()
