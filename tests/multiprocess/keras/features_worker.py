"""Further training features of Keras 3, on the workers of a job and in plain Keras on all rows."""

from __future__ import annotations

import contextlib
import traceback

import numpy as np

from tests.multiprocess.keras.training_worker import BATCH, DIM, ITEMS, data, dense, rows_of

ROWS = 70
SGD = {"class": "SGD", "arguments": {"learning_rate": 0.1}}


def _optimizer(name, **arguments):
    return {"optimizer": {"class": name, "arguments": {"learning_rate": 0.05, **arguments}}}


# Differences from a functional model that SGD trains for two epochs, by case. Independent features share a case,
# because each case costs seconds.
CASES = {
    "several_steps_at_once": {
        "compile": {"steps_per_execution": 3},
        "rows": "unequal",
        "weighted": True,
        **_optimizer("Adagrad"),
    },
    "eager": {"compile": {"run_eagerly": True}, "outputs": 2, **_optimizer("Adamax")},
    "two_outputs": {"outputs": 2, "fit": {"steps_per_epoch": 2}, "repeat": True, **_optimizer("Lion")},
    "class_weight": {"fit": {"class_weight": {0: 0.5, 1: 2.0}}, **_optimizer("Ftrl", clipvalue=0.02)},
    "arrays": {"arrays": True, **_optimizer("AdamW", weight_decay=0.1, gradient_accumulation_steps=2)},
    "norms": {"loss_scale": True, **_optimizer("RMSprop", momentum=0.9, centered=True, global_clipnorm=0.02)},
    "regularized": {"rows": "of_worker_0", "regularizer": "l2", **_optimizer("Adagrad")},
    "average": {"sharded": False, **_optimizer("SGD", use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)},
}


def build(embedding_scope, case):
    import keras

    keras.utils.set_random_seed(3)
    item, price = keras.Input([], name="item", dtype="int64"), keras.Input([1], name="price")
    with embedding_scope():
        vector = keras.layers.Embedding(ITEMS, DIM, name="items")(item)
    hidden = keras.layers.Dense(4, activation="tanh", kernel_regularizer=case.get("regularizer"))(
        keras.layers.Concatenate()([vector, price])
    )
    outputs = [
        keras.layers.Dense(1, activation="sigmoid", name=f"score_{i}")(hidden) for i in range(case.get("outputs", 1))
    ]
    model = keras.Model({"item": item, "price": price}, outputs if len(outputs) > 1 else outputs[0])
    chosen = case.get("optimizer", SGD)
    optimizer = getattr(keras.optimizers, chosen["class"])(**chosen["arguments"])
    if case.get("loss_scale"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    several = len(outputs) > 1
    loss, metrics = (["binary_crossentropy", "mse"], None) if several else ("binary_crossentropy", ["auc"])
    # XLA cannot compile exchanges. It is not used even on request.
    how = {
        "jit_compile": embedding_scope is not contextlib.nullcontext and not case.get("compile"),
        **case.get("compile", {}),
    }
    model.compile(optimizer, loss=loss, metrics=metrics, **how)
    return model


def shares(case, rank, world):
    """Returns the rows of a worker, and the number of them per batch; `rank` None: of all workers."""
    if case.get("rows") == "of_worker_0":
        return np.arange(0 if rank else 2 * BATCH), BATCH
    if case.get("rows") != "unequal":
        return (rows_of(rank, world, ROWS), BATCH) if rank is not None else (np.arange(ROWS), world * BATCH)
    # Worker 1 has 11 rows: one batch and a partial one. After that, only worker 0 continues.
    own = [np.r_[0:8, 16:24, 27:59], np.r_[8:16, 24:27]]
    if rank is not None:
        return own[rank], BATCH
    return [np.arange(16), np.arange(16, 27)] + [np.arange(start, start + 8) for start in range(27, 59, 8)], None


def feed(case, rank, world):
    """Returns the data for `fit`."""
    import tensorflow as tf

    columns, truth = data(4, ROWS)
    weights = np.linspace(0.1, 2, ROWS).astype(np.float32)
    rows, batch = shares(case, rank, world)

    def pick(rows):
        labels = truth[rows, np.newaxis]
        batch = ({n: c[rows] for n, c in columns.items()}, (labels,) * case["outputs"] if "outputs" in case else labels)
        return (*batch, weights[rows]) if case.get("weighted") else batch

    if case.get("arrays"):
        x, y = pick(rows)
        return {"x": x, "y": y, "batch_size": batch, "shuffle": False}
    if batch is None:
        parts = [tf.data.Dataset.from_tensors(pick(part)) for part in rows]
        dataset = parts[0]
        for part in parts[1:]:
            dataset = dataset.concatenate(part)
    else:
        dataset = tf.data.Dataset.from_tensor_slices(pick(rows)).batch(batch)
    return {"x": dataset.repeat() if case.get("repeat") else dataset}


def _outcome(model, history):
    values = {"weights": [np.asarray(w) for w in model.get_weights()], "history": history.history}
    # Slots, without the step counter, which is an int.
    return values | {"slots": [np.asarray(v) for v in model.optimizer.variables if "float" in str(v.dtype)]}


def plain(world):
    """Returns the results of plain Keras on the rows of all workers, by case."""
    outcomes = {}
    for name, case in CASES.items():
        model = build(contextlib.nullcontext, case)
        dense(model.optimizer)
        outcomes[name] = _outcome(model, model.fit(**feed(case, None, world), **fit_arguments(case)))
    return outcomes


def fit_arguments(case):
    return {"epochs": 2, "verbose": 0, **case.get("fit", {})}


def trained():
    """Returns a worker's results, or the error, by case."""
    import hybridbackend.tensorflow as hb

    outcomes = {}
    with hb.scope(data_sync_drop_remainder=False):
        for name, case in CASES.items():
            sharded = hb.embedding_scope if case.get("sharded", True) else contextlib.nullcontext
            try:
                model = build(sharded, case)
                history = model.fit(**feed(case, hb.context.rank, hb.context.world_size), **fit_arguments(case))
                outcomes[name] = _outcome(model, history)
            except Exception:
                outcomes[name] = traceback.format_exc()
        outcomes["refused"] = _refusals(hb.embedding_scope)
    return outcomes


def _refusals(embedding_scope):
    """Returns the errors for Keras' optimizers that compute with a whole variable, by name."""
    import tensorflow as tf

    answers = {}
    for name in ("Lamb", "Adafactor"):
        model = build(embedding_scope, _optimizer(name))
        weights = model.trainable_variables
        try:
            model.optimizer.apply([tf.zeros_like(w.value) for w in weights], weights)
        except NotImplementedError as error:
            answers[name] = str(error)
    return answers
