"""Tests that the layer learns the same as `keras.layers.Embedding`, and adds keys only in training."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3"):
    pytest.skip("the layer is one of Keras 3", allow_module_level=True)

from lockstep._src.tables import dynamic as embedding  # noqa: E402
from lockstep._src.tables.dynamic import serialized  # noqa: E402
from lockstep.keras import DynamicEmbedding  # noqa: E402

ROWS, DIM = 50, 4
MATRIX = np.random.RandomState(0).randn(ROWS, DIM).astype(np.float32)
# A batch of 16 has no duplicate keys, because Keras 3 itself squares the gradients of duplicates one by one.
INPUTS = np.concatenate([np.random.RandomState(i).permutation(ROWS)[:48].reshape(16, 3) for i in range(2)])
TARGETS = np.random.RandomState(2).randn(32, 1).astype(np.float32)

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "Adagrad, clipnorm": lambda: keras.optimizers.Adagrad(0.1, clipnorm=0.5),
    "Adam, global_clipnorm": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.5),
}


def trained(make_optimizer, dynamic, **compile_arguments):
    inputs = keras.Input((3,), dtype="int64")
    layer = DynamicEmbedding(DIM, "zeros") if dynamic else keras.layers.Embedding(ROWS, DIM)
    flat = keras.layers.Flatten()(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(flat))
    model.compile(make_optimizer(), "mse", **compile_arguments)
    if dynamic:
        layer.table.insert(np.arange(ROWS), MATRIX)
    else:
        layer.embeddings.assign(MATRIX)
    model.fit(INPUTS, TARGETS, batch_size=16, epochs=2, shuffle=False, verbose=0)
    loss = model.evaluate(INPUTS, TARGETS, batch_size=16, verbose=0)
    if not dynamic:
        return layer.embeddings.numpy(), loss
    model.predict(INPUTS + 1000, verbose=0)
    return layer.table.export().values.numpy(), loss


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fit_learns_what_a_static_layer_learns(name):
    rows, loss = trained(OPTIMIZERS[name], dynamic=True)
    expected, expected_loss = trained(OPTIMIZERS[name], dynamic=False)
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(expected_loss, rel=1e-5)


@pytest.mark.parametrize("eager", [False, True])
def test_a_loss_scale_changes_nothing(eager):
    make = OPTIMIZERS["Adam, global_clipnorm"]
    rows, _ = trained(lambda: keras.optimizers.LossScaleOptimizer(make(), initial_scale=8.0), True, run_eagerly=eager)
    np.testing.assert_allclose(rows, trained(make, dynamic=False)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compile_arguments", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}])
def test_steps_and_frequencies_are_counted_however_they_are_executed(compile_arguments):
    option = embedding.EmbeddingVariableOption(record_frequency=True, record_version=True)
    layer = DynamicEmbedding(2, combiner="sum", option=option)
    model = keras.Sequential([layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compile_arguments)
    keys = np.array([[1, 1], [2, 1], [3, 3], [1, 4]])
    model.fit(keys, np.ones([4, 1]), batch_size=1, shuffle=False, verbose=0)
    np.testing.assert_array_equal(layer.table.get_frequency([1, 2, 3, 4]), [4, 1, 2, 1])
    np.testing.assert_array_equal(layer.table.get_version([1, 2, 3, 4]), [3, 1, 2, 3])


def test_a_layer_that_is_not_trainable_takes_no_keys_in():
    layer = DynamicEmbedding(DIM, "uniform", trainable=False)
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer, keras.layers.Dense(1)])
    layer.table.insert(np.arange(ROWS), MATRIX)
    model.compile("sgd", "mse")
    model.fit(INPUTS + 20, np.ones([32, 3, 1]), verbose=0)
    assert int(layer.table.total_count()) == ROWS
    np.testing.assert_array_equal(layer(tf.constant([7, 1000]), training=True), [MATRIX[7], np.zeros(DIM)])


def test_an_optimizer_without_a_rule_works_on_the_touched_rows():
    # Only one batch: in a static layer, Nesterov's momentum would change rows without a gradient in the next one.
    rows, _ = trained(lambda: keras.optimizers.Adamax(0.1), dynamic=True, run_eagerly=True)
    assert not np.allclose(rows, MATRIX)


def test_it_trains_under_a_tape_and_evicts():
    layer = DynamicEmbedding(
        2, option=embedding.EmbeddingVariableOption(evict_option=embedding.GlobalStepEvict(1)), key_dtype="string"
    )
    optimizer = keras.optimizers.SGD(0.1)
    for keys in (["a", "b"], ["a", "c"], ["a", "d"]):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant(keys)))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    layer(tf.constant(["e"]))
    assert sorted(layer.table.export().keys.numpy()) == [b"a", b"d"]


@pytest.mark.parametrize(
    "convert", [lambda ragged: ragged, lambda ragged: ragged.to_sparse()], ids=["ragged", "sparse"]
)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combiners(combiner, convert):
    layer = DynamicEmbedding(DIM, "ones", combiner=combiner)
    expected = {"sum": [2, 0, 1], "mean": [1, 0, 1], "sqrtn": [2**0.5, 0, 1]}[combiner]
    ragged = tf.ragged.constant([[3, 4], [], [5]], dtype=tf.int64)
    np.testing.assert_allclose(layer(convert(ragged))[:, 0], expected, rtol=1e-6)
    assert layer(tf.constant([[1, 2]])).shape == (1, DIM)


def test_a_layer_is_made_again_from_its_configuration():
    option = embedding.EmbeddingVariableOption(filter_option=embedding.CounterFilter(2))
    layer = DynamicEmbedding(3, keras.initializers.RandomNormal(0.5), "string", "sqrtn", option)
    again = DynamicEmbedding.from_config(layer.get_config())
    assert (again.output_dim, again.key_dtype, again.combiner, again.option) == (3, tf.string, "sqrtn", option)
    assert again.embeddings_initializer.mean == 0.5
    model = keras.Sequential([keras.Input((1,), dtype="string"), layer])
    assert keras.models.clone_model(model).layers[0].option == option


@pytest.mark.parametrize("files", ["keras", "checkpoint"])
@pytest.mark.parametrize("key_dtype", ["int64", "string"])
def test_weights_are_saved_with_slots_and_counts(tmp_path, files, key_dtype):
    option = embedding.EmbeddingVariableOption(
        record_frequency=True, record_version=True, filter_option=embedding.CounterFilter(2)
    )
    keys = np.random.default_rng(2).integers(0, 30, [16, 3]).astype(str if key_dtype == "string" else np.int64)

    def made():
        keras.utils.set_random_seed(1)
        layer = DynamicEmbedding(DIM, "ones", key_dtype, "sum", option, name="users")
        model = keras.Sequential([keras.Input((3,), dtype=key_dtype), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adagrad(0.1, name="adagrad"), "mse")
        return model

    def step(model):
        model.train_on_batch(tf.constant(keys), np.ones([16, 1]))

    def held(model):
        """Returns all tensors of the table in a checkpoint, by name and key, and the dense layer's weights."""
        for file, content in zip(serialized._FILES, serialized.to_strings(model.layers[0].table).numpy(), strict=True):
            (tmp_path / file).write_bytes(content)
        reader = tf.train.load_checkpoint(f"{tmp_path}/table")
        tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        parts = {}
        for end in ("", "_filtered"):
            order = np.argsort(tensors[f"table-keys{end}"])
            parts |= {f"{n}{end}": tensors[f"table-{n}{end}"][order].tolist() for n in ("keys", "freqs", "versions")}
        order = np.argsort(tensors["table-keys"])
        slots = [f"table/{name.decode()}" for name in tensors["table-slots"]]
        parts |= {name: tensors[name][order].tolist() for name in ("table-values", *slots)}
        return parts, model.layers[1].get_weights()[0].tolist()

    first, second = made(), made()
    step(first)
    if files == "keras":
        first.save_weights(f"{tmp_path}/model.weights.h5")
    else:
        path = tf.train.Checkpoint(model=first).save(f"{tmp_path}/model.ckpt")
    had = held(first)
    assert had[0]["keys"] and had[0]["keys_filtered"] and any("accumulator" in name for name in had[0])
    # A restored table keeps nothing of its state before: neither another key, nor rows that another step has changed.
    other = ["1000"] if key_dtype == "string" else [1000]
    second.layers[0].table.insert(other, [[5.0] * DIM])
    step(second)
    step(second)
    if files == "keras":
        second.load_weights(f"{tmp_path}/model.weights.h5")
    else:
        tf.train.Checkpoint(model=second).restore(path).assert_consumed()
    assert held(second) == had
    step(first)
    step(second)
    # The weights do not include the optimizer's step counter, so the steps in which keys were seen differ.
    after = [
        {name: part for name, part in held(model)[0].items() if "versions" not in name} for model in (first, second)
    ]
    assert after[0] == after[1] and after[0]["table-values"] != had[0]["table-values"]


def test_tables_of_graphs_are_not_in_checkpoints_of_objects(tmp_path):
    with tf.Graph().as_default():
        table = embedding.get_embedding_variable("user", DIM)
        with pytest.raises(NotImplementedError, match="table 'user'.*of a graph.*Saver saves them"):
            tf.train.Checkpoint(table=table).write(f"{tmp_path}/model.ckpt")


def test_what_it_cannot_do_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="combiner is 'max'"):
        DynamicEmbedding(2, combiner="max")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), DynamicEmbedding(2)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
    with pytest.raises(NotImplementedError, match="use_ema"):
        model.fit(np.ones([4, 1], np.int64), np.ones([4, 1, 2]), verbose=0)


def adagrad_step(rows, accumulators, batch):
    """Applies a step of rate 0.1 on the mean of the squares of a batch's rows."""
    gradient = np.zeros_like(rows)
    np.add.at(gradient, batch, 2 * rows[batch] / (batch.size * DIM))
    accumulators += gradient**2
    rows -= 0.1 * gradient / np.sqrt(accumulators + 1e-7)


def test_wrong_types_of_keys_name_the_layer_when_the_model_is_made():
    with pytest.raises(TypeError, match="layer 'user': keys are 'strng', wanted int64, int32 or string"):
        DynamicEmbedding(4, key_dtype="strng", name="user")
    for dtype, key_dtype, message in (
        ("string", "int64", "layer 'user': keys are string, wanted int64; for string keys create it with another key"),
        ("int64", "string", "layer 'user': keys are int64, wanted string; for integer keys create it with another key"),
    ):
        with pytest.raises(TypeError, match=message):
            DynamicEmbedding(4, key_dtype=key_dtype, name="user")(keras.Input([], dtype=dtype))


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_optimizers_that_come_and_go_take_the_memory_of_one(run_eagerly):
    layer = DynamicEmbedding(DIM, "ones", name="users")
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])

    def fit(optimizer):
        model.compile(optimizer, "mse", run_eagerly=run_eagerly)
        model.fit(INPUTS, np.zeros([32, 3, DIM]), batch_size=16, shuffle=False, verbose=0)
        return int(layer.table.memory_bytes())

    # Two optimizers with a rule of two slots each, and one with a stand-in.
    taken = {fit(make()) for make in [*[lambda: keras.optimizers.Adam(0.1, name="adam")] * 3, keras.optimizers.Nadam]}
    assert len(taken) == 1
    # The results equal a new table's: the slots contain nothing of the previous ones.
    last = keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5, name="adagrad")
    layer.table.insert(np.arange(ROWS), MATRIX)
    assert {fit(last)} == taken
    rows, reference = MATRIX.copy(), np.full([ROWS, DIM], 0.5, np.float32)
    for batch in INPUTS.reshape(2, 16, 3):
        adagrad_step(rows, reference, batch)
    np.testing.assert_allclose(layer.table.export_slots("adagrad/accumulator")[0], reference, rtol=1e-4)
    np.testing.assert_allclose(layer.table.export().values, rows, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("goes_on", [False, True])
def test_restored_slots_are_for_an_optimizer_that_comes_unless_the_one_before_went_on_with_them(goes_on, tmp_path):
    layer = DynamicEmbedding(DIM, "ones", name="users")
    model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
    batch, rows = INPUTS[:16], np.ones([ROWS, DIM], np.float32)
    accumulators = np.full_like(rows, 0.5)

    def fit(new_optimizer):
        if new_optimizer:
            model.compile(keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5, name="adagrad"), "mse")
        model.fit(batch, np.zeros([16, 3, DIM]), batch_size=16, verbose=0)
        adagrad_step(rows, accumulators, batch)

    fit(new_optimizer=True)
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    if goes_on:
        fit(new_optimizer=False)
        accumulators[:] = 0.5
    fit(new_optimizer=True)
    keys = np.unique(batch)
    np.testing.assert_allclose(layer.table.export().values, rows[keys], rtol=1e-4)
    np.testing.assert_allclose(layer.table.export_slots("adagrad/accumulator")[0], accumulators[keys], rtol=1e-4)


def test_a_model_of_a_class_is_built_by_its_first_fit():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.out = DynamicEmbedding(DIM, "ones"), keras.layers.Dense(1)

        def call(self, keys):
            return self.out(self.embedding(keys))

    model = Model()
    model.compile("adam", "mse")
    model.fit(INPUTS, np.zeros([32, 3, 1]), verbose=0)
    assert sorted(model.embedding.table.export()[0].numpy()) == sorted(set(INPUTS.ravel()))


def test_a_file_of_keras_has_slots_of_optimizers_without_a_rule(tmp_path):
    inputs = keras.Input((3,), dtype="int64")
    model = keras.Model(inputs, DynamicEmbedding(DIM, "ones")(inputs))
    model.compile(keras.optimizers.Nadam(0.1), "mse")
    model.train_on_batch(INPUTS, np.zeros([32, 3, DIM]))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.train_on_batch(INPUTS, np.zeros([32, 3, DIM]))
    np.testing.assert_array_equal(loaded.predict(INPUTS, verbose=0), model.predict(INPUTS, verbose=0))
