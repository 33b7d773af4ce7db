"""A model of Keras 3 with a sharded embedding, dropout off: on the workers of a job, and in plain Keras on all rows."""

from __future__ import annotations

import contextlib
import re

import numpy as np

ROWS, BATCH, ITEMS, DIM, EPOCHS = 90, 8, 23, 4, 2


def data(seed, rows):
    rng = np.random.default_rng(seed)
    item = rng.integers(0, ITEMS, rows)
    return {"item": item, "price": rng.normal(size=(rows, 1)).astype(np.float32)}, (item % 2).astype(np.float32)


def build(embedding_scope, optimizer, seed=1):
    """Returns a functional model; the embedding's layer is built while the model is built."""
    import keras

    keras.utils.set_random_seed(seed)
    item, price = keras.Input([], name="item", dtype="int64"), keras.Input([1], name="price")
    with embedding_scope():
        vector = keras.layers.Embedding(ITEMS, DIM, name="items")(item)
    hidden = keras.layers.Concatenate()([vector, price])
    hidden = keras.layers.Dense(6, activation="tanh", name="hidden")(hidden)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    model = keras.Model({"item": item, "price": price}, keras.layers.Dense(1, activation="sigmoid")(hidden))
    make = getattr(keras.optimizers, optimizer["class"])
    model.compile(make(**optimizer["arguments"]), loss="binary_crossentropy", metrics=["auc"])
    return model


def dataset(columns, truth, rows, batch):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(({n: c[rows] for n, c in columns.items()}, truth[rows])).batch(batch)


def rows_of(rank, world, rows):
    """Returns the worker's part of each batch of W·B rows; of the last batch, the remaining rows."""
    whole = np.arange(rows)
    return np.concatenate([whole[start + rank * BATCH :][:BATCH] for start in range(0, rows, world * BATCH)])


def dense(optimizer):
    """Returns the optimizer for dense gradients, because Keras would square the slices of one row separately."""
    import tensorflow as tf

    apply = optimizer.apply
    optimizer.apply = lambda grads, variables=None: apply([tf.convert_to_tensor(g) for g in grads], variables)


def counts(model):
    """Returns the lines of a model's summary that count parameters, and their number."""
    lines = []
    model.summary(print_fn=lambda line, **_: lines.extend(line.splitlines()))
    return [line.strip() for line in lines if "params" in line], model.count_params()


def plain(optimizer, world):
    """Returns the results of plain Keras on all rows, with the batches of `world` workers together."""
    model = build(contextlib.nullcontext, optimizer)
    dense(model.optimizer)
    columns, truth = data(0, ROWS)
    history = model.fit(dataset(columns, truth, np.arange(ROWS), world * BATCH), epochs=EPOCHS, verbose=0).history
    columns, truth = data(1, 37)
    held_out = dataset(columns, truth, np.arange(37), 5)
    values = model.evaluate(held_out, verbose=0, return_dict=True)
    return {
        "weights": [np.asarray(w) for w in model.get_weights()],
        "counts": counts(model),
        "slots": [np.asarray(v) for v in model.optimizer.variables],
        "history": history,
        "values": values,
        "predicted": model.predict(held_out, verbose=0)[:, 0],
    }


def fit(optimizer, folder, drop_remainder):
    """Returns the same on the workers of a job."""
    import hybridbackend.tensorflow as hb
    from lockstep.keras import export

    rank, world = hb.context.rank, hb.context.world_size
    with hb.scope(data_sync_drop_remainder=drop_remainder):
        # Each worker has another seed: dense weights begin with worker 0's values. Tables need the same seed.
        model = build(hb.embedding_scope, optimizer)
        columns, truth = data(0, ROWS)
        own = dataset(columns, truth, rows_of(rank, world, ROWS), BATCH)
        history = model.fit(own, epochs=EPOCHS, verbose=0).history
        columns, truth = data(1, 37)
        # Worker 0 has only one row.
        rows = np.arange(37) if world == 1 else np.arange(1) if rank == 0 else np.arange(1, 37)
        held_out = dataset(columns, truth, rows, 5)
        values = model.evaluate(held_out, verbose=0, return_dict=True)
        predicted = model.predict(held_out, verbose=0)[:, 0]
        path = f"{folder}/model.weights.h5"
        model.save_weights(path)
        weights = [np.asarray(w) for w in model.get_weights()]
        counted = counts(model)
        local = [tuple(v._value.shape) for v in model.variables if v.path.endswith("embeddings")]
        slots = [np.asarray(v) for v in model.optimizer.variables]
        again = build(hb.embedding_scope, optimizer, seed=2)
        again.load_weights(path)
        reloaded = [np.asarray(w) for w in again.get_weights()]
        export(model, f"{folder}/exported", verbose=False)
        predicted_on = model.predict(held_out, verbose=0)[:, 0]
    return {
        "weights": weights,
        "local": local,
        "counts": counted,
        "slots": slots,
        "history": history,
        "values": values,
        "predicted": predicted,
        "reloaded": reloaded,
        "path": path,
        "exported": f"{folder}/exported",
        "predicted_after_export": predicted_on,
    }


def fit_csv(path, batch):
    """Fits on a CSV file, in a plain program, or in a job: unshared, and shared. `batch`: the rows of all workers."""
    import keras
    import tensorflow as tf

    import hybridbackend.tensorflow as hb
    from tests.multiprocess.on_each_worker import logged

    world = hb.context.world_size
    lines = tf.data.TextLineDataset(path).map(lambda line: tf.strings.to_number(tf.strings.split(line, ",")))
    batches = lines.map(lambda row: (row[:2], row[2])).batch(batch // world)
    # Shared by rows: a batch of all workers together has the rows of one worker's batch.
    shares = lines.apply(hb.data.shard).map(lambda row: (row[:2], row[2])).batch(batch // world)
    found = []
    # The shares come first, because the warning comes once.
    for data in (shares, batches, batches) if world > 1 else (batches,):
        keras.utils.set_random_seed(1)
        with hb.scope() if world > 1 else contextlib.nullcontext():
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse")
            with logged("first batch is the same on all 2 workers") as said:
                for _ in range(2):
                    model.fit(data, epochs=2, verbose=0, validation_data=batches)
        found.append((model.get_weights(), said))
    return found


def fit_unevenly():
    """Returns the warnings of epochs that leave out data of worker 1, and this worker's last counts of batches."""
    import io

    import keras
    import tensorflow as tf

    import lockstep
    from tests.multiprocess.on_each_worker import logged

    found = []
    uneven = 8 * (1 + 9 * lockstep.rank())
    # Without its batches, a dataset's number of batches is not known; one batch may remain.
    for rows, is_known in ((8, True), (uneven, True), (8 + 4 * lockstep.rank(), False), (uneven, False)):
        x = np.random.default_rng(lockstep.rank()).normal(size=(rows, 2))
        with lockstep.scope(), logged("The epoch ended") as said, contextlib.redirect_stdout(io.StringIO()) as shown:
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            if is_known:
                model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=1)
            else:
                data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2).unbatch().filter(lambda *_: True)
                model.fit(data.batch(4), epochs=2, verbose=1, shuffle=False)
        counts = re.findall(r"\d/(\d+)", shown.getvalue())
        found.append((said, counts[-1]))
    return found


def fit_arrays():
    """Returns how many warnings there are for arrays of this worker's own rows, and for the same ones on all."""
    import keras
    import tensorflow as tf

    import lockstep
    from tests.multiprocess.on_each_worker import logged

    rng = np.random.default_rng(3)
    names = [f"name {number}" for number in range(48)]
    numbers, labels = rng.normal(size=(48, 2)), rng.normal(size=48)
    found = []
    for own in (True, False):
        rows = slice(lockstep.rank(), None, lockstep.size()) if own else slice(None)
        with lockstep.scope(), logged("first batch is the same on all 2 workers") as said:
            keras.utils.set_random_seed(lockstep.rank())  # each worker shuffles in another order
            name, number = keras.Input([], dtype="string"), keras.Input([2])
            hashed = keras.layers.Embedding(8, 2)(keras.layers.Hashing(8)(name))
            model = keras.Model([name, number], keras.layers.Dense(1)(keras.layers.Concatenate()([hashed, number])))
            model.compile("sgd", "mse")
            model.fit([tf.constant(names)[rows], numbers[rows]], labels[rows], batch_size=8, verbose=0)
        found.append(len(said))
    return found


def begin(folder):
    """Returns the weights of a model that is built while its first step is traced, with another seed on each worker."""
    import keras

    import hybridbackend.tensorflow as hb

    with hb.scope():
        keras.utils.set_random_seed(hb.context.rank)
        model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
        rng = np.random.default_rng(hb.context.rank)
        model.fit(rng.normal(size=[16, 2]), rng.normal(size=[16, 1]), batch_size=4, verbose=0)
        return model.get_weights()


def exchanges_of_a_step(layers):
    """Returns the engine's operations, by kind, in a training step of a model with embeddings of several widths."""
    import collections

    import keras
    import tensorflow as tf
    from tensorflow.python.eager import context as eager_context

    import hybridbackend.tensorflow as hb

    with hb.scope():
        ids = keras.Input([layers], dtype="int64")
        with hb.embedding_scope():
            vectors = [keras.layers.Embedding(10 + i, 2 + i % 3)(ids[:, i]) for i in range(layers)]
        model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(vectors)))
        model.compile("adagrad", loss="mse")
        batch = np.random.default_rng(hb.context.rank).integers(0, 10, [16, layers])
        data = tf.data.Dataset.from_tensor_slices((batch, batch[:, :1].astype(np.float32))).batch(8)
        engine = eager_context.context()
        engine.enable_graph_collection()
        try:
            model.fit(data, verbose=0)
            graphs = engine.export_run_metadata().partition_graphs
        finally:
            engine.disable_graph_collection()
    kinds = collections.Counter(node.op for graph in graphs for node in graph.node)
    return {kind: count for kind, count in kinds.items() if kind.startswith("Lockstep")}


def call_alone(name, goes_on):
    """Calls a method of a model only on rank 0: behind the scope, then in it, where rank 1 ends or trains instead.

    Returns:
      The number of rows that rank 0 predicted behind the scope, and the message of the error in the scope.
    """
    import keras

    import hybridbackend.tensorflow as hb

    x, y = np.ones([8, 2], "f"), np.ones([8, 1], "f")
    with hb.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
        model.fit(x * hb.context.rank, y, batch_size=4, verbose=0)
    rows = len(model.predict(x, verbose=0)) if hb.context.rank == 0 else 0
    said = ""
    with hb.scope():
        try:
            if hb.context.rank == 0:
                getattr(model, name)(x, **({} if name == "predict" else {"y": y}), verbose=0)
            elif goes_on:
                model.fit(x, y, verbose=0)
        except RuntimeError as error:
            said = str(error)
    return rows, said


def save_alone(name, folder):
    """Saves or exports a model with a sharded table only on rank 0, while rank 1 ends; returns the error's message."""
    import keras

    import hybridbackend.tensorflow as hb
    import lockstep.keras

    with hb.scope():
        with hb.embedding_scope():
            table = keras.layers.Embedding(8, 2)
            table.build()
        model = keras.Sequential([keras.Input([1], dtype="int64"), table, keras.layers.Dense(1)])
        calls = {
            "save": lambda: model.save(f"{folder}/model.keras"),
            "save_weights": lambda: model.save_weights(f"{folder}/model.weights.h5"),
            "export": lambda: lockstep.keras.export(model, f"{folder}/export"),
        }
        try:
            if hb.context.rank == 0:
                calls[name]()
        except RuntimeError as error:
            return str(error)
    return ""
