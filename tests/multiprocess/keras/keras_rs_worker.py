"""A model of Keras 3 with two `DistributedEmbedding`s of Keras RS: on the workers of a job, and in plain Keras.

Its features are single ids, ragged and sparse ones, and dense and sparse ones with weights. Two features share a table,
and each table has an optimizer of another class than the model's.
"""

from __future__ import annotations

import contextlib

import numpy as np

ROWS, BATCH, DIM, EPOCHS = 40, 5, 4, 2
SIZES = {"item": 23, "genre": 9, "tag": 14}


def columns(rows=ROWS, seed=0):
    """Returns the features as dense arrays, with -1 in place of missing ids, and the labels."""
    rng = np.random.default_rng(seed)
    found = {
        "item": rng.integers(0, SIZES["item"], rows),
        "history": rng.integers(-1, SIZES["item"], [rows, 3]),
        "genres": rng.integers(-1, SIZES["genre"], [rows, 2]),
        "tags": rng.integers(-1, SIZES["tag"], [rows, 3]),
        "words": rng.integers(0, SIZES["tag"], [rows, 2]),
        "tag_weights": rng.uniform(0.5, 2, [rows, 3]).astype(np.float32),
        "word_weights": rng.uniform(0.5, 2, [rows, 2]).astype(np.float32),
    }
    return found, (found["item"] % 2).astype(np.float32)


def dataset(rows, batch, seed=0):
    """Returns the batches of the given rows, with ragged and sparse features."""
    import tensorflow as tf

    def features(row, label):
        def ragged(ids):
            return tf.ragged.boolean_mask(ids, ids >= 0)

        def sparse(values, kept):
            return tf.SparseTensor(tf.where(kept), tf.boolean_mask(values, kept), tf.shape(kept, tf.int64))

        kept = row["tags"] >= 0
        more = {"history": ragged(row["history"]), "genres": ragged(row["genres"])}
        more |= {"tags": sparse(row["tags"], kept), "tag_weights": sparse(row["tag_weights"], kept)}
        return row | more, label

    row, label = columns(seed=seed)
    data = tf.data.Dataset.from_tensor_slices(({name: c[rows] for name, c in row.items()}, label[rows]))
    return data.batch(batch).map(features)


def configurations():
    """Returns the feature configurations of the layer without weights, and of the one with weights."""
    import keras
    from keras_rs.layers import FeatureConfig, TableConfig

    # The default initializer has a seed that is drawn when the module is imported.
    begin, adagrad = (
        keras.initializers.RandomUniform(seed=7),
        keras.optimizers.Adagrad(0.2, initial_accumulator_value=0.3),
    )
    item = TableConfig("item_table", SIZES["item"], DIM, begin, adagrad, placement="default_device")
    genre = TableConfig("genre_table", SIZES["genre"], DIM, begin, adagrad, combiner="sqrtn")
    tag = TableConfig("tag_table", SIZES["tag"], DIM, begin, "adam", combiner="sum")
    alone = {
        "item": FeatureConfig("item", item, (None,), (None, DIM)),
        "history": FeatureConfig("history", item, (None, None), (None, DIM)),
        "genres": FeatureConfig("genres", genre, (None, None), (None, DIM)),
    }
    weighted = {
        "tags": FeatureConfig("tags", tag, (None, None), (None, DIM)),
        "words": FeatureConfig("words", tag, (None, 2), (None, DIM)),
    }
    return alone, weighted


def own_optimizers(default):
    """Returns the optimizer for plain Keras that gives each variable the optimizer that the scope gives it."""
    import keras

    optimizers = {
        "item_table": keras.optimizers.Adagrad(0.2, initial_accumulator_value=0.3),
        "genre_table": keras.optimizers.Adagrad(0.2, initial_accumulator_value=0.3),
        "tag_table": keras.optimizers.Adam(),
    }
    return keras.optimizers.MultiOptimizer(
        lambda variable: next((o for name, o in optimizers.items() if name in variable.path), default)
    )


def build(embedding_scope, optimizer, seed=1):
    import keras
    from keras_rs.layers import DistributedEmbedding

    keras.utils.set_random_seed(seed)
    ids = {
        "item": keras.Input([], name="item", dtype="int64"),
        "history": keras.Input([None], name="history", dtype="int64", ragged=True),
        "genres": keras.Input([None], name="genres", dtype="int64", ragged=True),
        "tags": keras.Input([None], name="tags", dtype="int64", sparse=True),
        "words": keras.Input([2], name="words", dtype="int64"),
    }
    weights = {
        "tags": keras.Input([None], name="tag_weights", sparse=True),
        "words": keras.Input([2], name="word_weights"),
    }
    alone, weighted = configurations()
    with embedding_scope():
        vectors = DistributedEmbedding(alone, name="alone")({name: ids[name] for name in alone})
        vectors |= DistributedEmbedding(weighted, name="weighted")({name: ids[name] for name in weighted}, weights)
    hidden = keras.layers.Dense(6, activation="tanh")(keras.layers.Concatenate()([vectors[name] for name in vectors]))
    inputs = ids | {f"{name[:-1]}_weights": tensor for name, tensor in weights.items()}
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer, loss="binary_crossentropy")
    return model


def results(model, optimizers):
    """Returns tables, dense weights and predictions, and the slots of the tables' optimizers."""
    tables = {}
    for name in ("alone", "weighted"):
        tables |= {table: np.asarray(rows) for table, rows in model.get_layer(name).get_embedding_tables().items()}
    return {
        "tables": tables,
        "dense": [np.asarray(v) for layer in model.layers if "dense" in layer.name for v in layer.weights],
        "slots": {table: [np.asarray(v) for v in optimizers[table].variables] for table in optimizers},
        "predicted": model.predict(dataset(np.arange(8), 4, seed=3), verbose=0)[:, 0],
    }


def plain(world):
    """Returns the results of plain Keras and Keras RS on all rows, with the batches of `world` workers together."""
    import keras
    import keras_rs  # noqa: F401

    from tests.multiprocess.keras.training_worker import dense

    model = build(contextlib.nullcontext, own_optimizers(keras.optimizers.SGD(0.1)))
    dense(model.optimizer)
    model.fit(dataset(np.arange(ROWS), world * BATCH), epochs=EPOCHS, verbose=0)
    variables = [(o, v.path.split("/")) for o in model.optimizer.optimizers for v in o._trainable_variables]
    return results(model, {path[-2]: o for o, path in variables if path[-1] == "embeddings"})


def table_optimizers(model):
    """Returns the tables' optimizers by the names of tables."""
    return {o.name.rpartition("_")[0]: o for o in model.optimizer.table_optimizers}


def fit(folder):
    """Returns the same on the workers of a job, and the results of models that are loaded from its files."""
    import keras
    import keras_rs  # noqa: F401

    import lockstep

    rank, world = lockstep.rank(), lockstep.size()
    shares = [np.arange(start + rank * BATCH, start + (rank + 1) * BATCH) for start in range(0, ROWS, world * BATCH)]
    data = dataset(np.concatenate(shares), BATCH)
    with lockstep.scope():
        model = build(lockstep.embedding_scope, keras.optimizers.SGD(0.1))
        model.fit(data, epochs=EPOCHS, verbose=0)
        found = {"trained": results(model, table_optimizers(model))}
        found["local"] = [tuple(v._value.shape) for v in model.variables if v.path.endswith("embeddings")]
        for name, size in (("one.weights.h5", None), ("parts.weights.json", 1e-6)):
            model.save_weights(f"{folder}/{name}", **({"max_shard_size": size} if size else {}))
            again = build(lockstep.embedding_scope, "sgd", seed=2)
            again.load_weights(f"{folder}/{name}")
            found[name] = results(again, {})
        model.save(f"{folder}/model.keras")
        with lockstep.embedding_scope():
            loaded = keras.models.load_model(f"{folder}/model.keras")
        found["model.keras"] = results(loaded, table_optimizers(loaded))
        for continued in (model, loaded):
            continued.fit(data, epochs=1, verbose=0)
        found["continued"] = [results(m, table_optimizers(m)) for m in (model, loaded)]
    return found
