"""`hb.keras.Model`: a subclass in a graph of TensorFlow 1, and the same model written only with `tf.compat.v1`."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import tensorflow as tf

from tests.multiprocess.estimator.estimator_worker import HELD_OUT, data, dataset, logits_of, plain, shares


def in_a_graph(folder):
    """Calls everything that the model offers, and returns the results. The oracle is `estimator_worker.plain`."""
    import tensorflow.compat.v1 as tf1

    import hybridbackend.tensorflow as hb

    tf1.disable_v2_behavior()

    class Ranking(hb.keras.Model):
        def call(self, inputs):
            return tf.sigmoid(logits_of(inputs, hb.embedding_scope))

    def loss(labels, scores):
        # The logits' loss, for the same gradients to the last digits.
        logits = scores.op.inputs[0]
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.cast(labels, tf.float32), logits=logits)

    train_input_fn, eval_input_fn = shares(hb.context.rank, hb.context.world_size)
    model = Ranking()
    model.compile(tf1.train.AdagradOptimizer(0.1), loss, metrics=["auc", "accuracy", loss_named("twice", loss)])
    fitted = model.fit(
        train_input_fn(),
        epochs=2,
        validation_data=eval_input_fn(),
        checkpoint_dir=f"{folder}/model",
        keep_checkpoint_max=2,
    )
    values = model.evaluate(eval_input_fn(), return_dict=True)
    listed = model.evaluate(eval_input_fn(), steps=1)
    predicted = model.predict(eval_input_fn())
    first = tf1.train.load_checkpoint(f"{folder}/model/model.ckpt-6")
    outcome = {
        "weights": {name: first.get_tensor(name) for name in ("table", "dense/kernel")},
        "history": fitted.history,
        "epochs": fitted.epoch,
        "values": values,
        "listed": listed,
        "predicted": predicted,
    }

    def signature():
        inputs = {"item": tf1.placeholder(tf.int64, [None]), "price": tf1.placeholder(tf.float32, [None])}
        return tf1.saved_model.predict_signature_def(inputs, {"score": Ranking()(inputs)})

    outcome["exported"] = model.export_saved_model(f"{folder}/export", signature)
    with tf.Graph().as_default():
        outcome |= _of_tensors(folder, loss, hb)
    return outcome


def loss_named(name, loss):
    def twice(labels, scores):
        return 2 * loss(labels, scores)

    twice.__name__ = name
    return twice


def _of_tensors(folder, loss, hb):
    """Returns results of a model of an iterator's tensors. It begins with the other's weights, and does not train."""
    import tensorflow.compat.v1 as tf1

    train_input_fn, eval_input_fn = shares(hb.context.rank, hb.context.world_size)
    has_keras_2 = getattr(tf.keras, "__version__", "2").startswith("2")
    with hb.scope():
        if has_keras_2:
            assert tf1.keras.Model is tf1.keras.models.Model is hb.keras.Model
        features, labels = tf1.data.make_one_shot_iterator(train_input_fn()).get_next()
        model = hb.keras.Model([features], tf.sigmoid(logits_of(dict(features), hb.embedding_scope)))
        model.load_weights(f"{folder}/model")
        auc = tf1.keras.metrics.AUC(name="auc") if has_keras_2 else "auc"
        model.compile(tf1.train.GradientDescentOptimizer(0.0), loss, metrics=[auc], target_tensors=labels, clipnorm=1.0)
        stops = Stops(hb.context.rank)
        callbacks, refused = [stops], None
        if has_keras_2:
            logs = tf1.keras.callbacks.CSVLogger(f"{folder}/log.csv", append=True)
            callbacks += [logs, tf1.keras.callbacks.TensorBoard(f"{folder}/board")]
            try:
                model.fit(steps_per_epoch=2, callbacks=[tf1.keras.callbacks.ModelCheckpoint(f"{folder}/best", "loss")])
            except NotImplementedError as error:
                refused = str(error)
        history = model.fit(
            epochs=4,
            steps_per_epoch=2,
            validation_data=eval_input_fn(),
            callbacks=callbacks,
            save_best_only=True,
            monitor="val_auc",
        )
        return {"of_tensors": history.history, "batches_told": stops.batches, "refused": refused}


class Stops:
    """A callback, as Keras has them, that ends training after the second epoch."""

    def __init__(self, rank):
        self.rank = rank
        self.batches = 0

    def set_model(self, model):
        self.model = model

    def on_train_batch_end(self, batch, logs):
        assert np.isfinite(logs["loss"])
        self.batches += 1

    def on_epoch_end(self, epoch, logs):
        assert "val_auc" in logs
        # Only one worker requests the end.
        self.model.stop_training = epoch == 1 and self.rank == 1

    def __getattr__(self, name):
        return lambda *args: None


def _trained_alone(model):
    """Returns the results of a model that one process trains on the rows of all workers."""
    from tests.multiprocess.keras.training_worker import dense

    dense(model.optimizer)
    columns, truth = data(0, 96)
    fitted = model.fit(dataset(columns, truth, np.arange(96), 16), epochs=3, verbose=0)
    columns, truth = data(1, HELD_OUT)
    values = model.evaluate(dataset(columns, truth, np.arange(HELD_OUT), 5), verbose=0)
    return {"history": fitted.history, "values": values, "weights": [np.asarray(w) for w in model.get_weights()]}


def subclass(folder, world):
    """Trains a subclass of `hb.keras.Model` of Keras 3; with `world`, of plain Keras on the rows of `world` workers."""
    import keras

    hb = None
    if world is None:
        import hybridbackend.tensorflow as hb

    class Ranking(keras.Model if hb is None else hb.keras.Model):
        def __init__(self):
            super().__init__()
            with contextlib.nullcontext() if hb is None else hb.embedding_scope():
                self.items = keras.layers.Embedding(23, 4)
                self.items.build([None])
            self.score = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs):
            return self.score(tf.concat([self.items(inputs["item"]), inputs["price"][:, tf.newaxis]], axis=1))

    def make(seed):
        keras.utils.set_random_seed(seed)
        model = Ranking()
        model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["auc"])
        return model

    if hb is None:
        return _trained_alone(make(1))
    train_input_fn, eval_input_fn = shares(hb.context.rank, hb.context.world_size)
    with hb.scope():
        model = make(1)
        first = model.fit(train_input_fn(), epochs=2, verbose=0, checkpoint_dir=f"{folder}/fit", keep_checkpoint_max=1)
        # Another process would begin with the saved weights and slots.
        again = make(2)
        rest = again.fit(train_input_fn(), verbose=0, checkpoint_dir=f"{folder}/fit", keep_checkpoint_max=1)
        fresh = make(3)
        values = fresh.evaluate(eval_input_fn(), verbose=0, checkpoint_dir=f"{folder}/fit")
        again.load_weights(f"{folder}/fit")
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=9, restore_best_weights=True)
        saving = keras.callbacks.ModelCheckpoint(f"{folder}/best.weights.h5", "loss", True, True, True)
        weights = [np.asarray(w) for w in again.get_weights()]
        stopped = fresh.fit(train_input_fn(), epochs=9, verbose=0, callbacks=[stopping, saving])
        tensors = keras.Input([3])
        functional = hb.keras.Model(tensors, keras.layers.Dense(1)(tensors))
        functional.save(f"{folder}/functional.keras")
        functional.compile("sgd", "mse", loss_weights=None)
        columns = np.ones([4, 3], np.float32)
        losses = functional.fit(columns, columns[:, :1], verbose=0).history["loss"]
        ended = _ended_by_one_worker(functional, columns, hb.context.rank)
    return {
        "history": {name: first.history[name] + rest.history[name] for name in first.history},
        "values": values,
        "weights": weights,
        "stopped": len(stopped.epoch),
        "saved": sorted(os.listdir(folder)),
        "kept": os.listdir(f"{folder}/fit"),
        "functional": losses,
        "ended": ended,
    }


def _ended_by_one_worker(model, columns, rank):
    """Returns batches and epochs of passes over four batches in which worker 1 asks for the end, and the weights."""
    import keras

    told = []

    class Asks(keras.callbacks.Callback):
        def __init__(self, **after):
            super().__init__()
            self.after = after

        def ask(self, method, number, attribute):
            told.append(method)
            if self.after.get(method) == number and rank == 1:
                setattr(self.model, attribute, True)

        def on_train_batch_end(self, batch, logs=None):
            self.ask("batch", batch, "stop_training")

        def on_epoch_end(self, epoch, logs=None):
            self.ask("epoch", epoch, "stop_training")

        def on_test_batch_end(self, batch, logs=None):
            self.ask("test", batch, "stop_evaluating")

        def on_predict_batch_end(self, batch, logs=None):
            self.ask("predict", batch, "stop_predicting")

    def counted(call):
        told.clear()
        call()
        return {name: told.count(name) for name in sorted(set(told))}

    whole = (columns, columns[:, :1])

    def fit(steps=None, **after):
        batches = {"batch_size": 1, "steps_per_epoch": steps, "epochs": 5, "verbose": 0}
        return counted(lambda: model.fit(*whole, **batches, validation_data=whole, callbacks=[Asks(**after)]))

    one_by_one = {"batch_size": 1, "verbose": 0}
    calls = {
        "in an epoch": fit(batch=1),
        "with its last batch": fit(batch=3),
        "with its last step": fit(batch=1, steps=2),
        "after an epoch": fit(epoch=1),
        "evaluation": counted(lambda: model.evaluate(*whole, **one_by_one, callbacks=[Asks(test=2)])),
        "prediction": counted(lambda: model.predict(columns, **one_by_one, callbacks=[Asks(predict=0)])),
    }
    return calls, model.get_weights()


__all__ = ["in_a_graph", "plain", "subclass"]
