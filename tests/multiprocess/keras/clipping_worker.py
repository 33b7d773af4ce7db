"""Training with Keras 3 whose optimizer clips gradients of an embedding table, in a scope and without."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

import hybridbackend.tensorflow as hb
import lockstep

ROWS, STEPS, BATCH = 10, 4, 16
IDS = np.arange(STEPS * BATCH) % ROWS
LABELS = (IDS % 3).astype(np.float32)[:, None]
CLIPS = ({"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.05})
# A regularizer or sums over several steps make the table's gradient dense.
KINDS = ("regularized", "accumulated", "eager", "dynamic")


class DenseSGD(keras.optimizers.SGD):
    """Clips gradients in dense form, in which a row has one sum."""

    def _clip_gradients(self, grads):
        return super()._clip_gradients([tf.convert_to_tensor(g) for g in grads])


class Penalized(keras.Sequential):
    """Adds the squares of the input's gradients to the loss."""

    def train_step(self, data):
        x, y = data
        table, dense = self.layers[0], self.layers[1]
        with tf.GradientTape() as tape:
            rows = table(x)
            with tf.GradientTape() as inner:
                inner.watch(rows)
                loss = tf.reduce_mean(tf.square(dense(rows) - y))
            slopes = inner.gradient(loss, rows) * tf.cast(tf.shape(rows)[0], tf.float32)
            loss += 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(slopes), 1))
            loss = self.optimizer.scale_loss(loss)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def _trained(kind, clip, in_scope):
    rank, world = (hb.context.rank, hb.context.world_size) if in_scope else (0, 1)
    mine = np.arange(len(IDS)).reshape(STEPS, world, -1)[:, rank].ravel()
    keras.utils.set_random_seed(1)
    with lockstep.scope() if in_scope else contextlib.nullcontext():
        regularizer = keras.regularizers.L2(0.1) if kind == "regularized" else None
        initial = keras.initializers.Constant(np.linspace(-1, 1, ROWS * 4).reshape(ROWS, 4))
        if kind == "dynamic" and in_scope:
            embedding = lockstep.keras.DynamicEmbedding(4, embeddings_initializer="zeros")
        else:
            initial = "zeros" if kind == "dynamic" else initial
            embedding = keras.layers.Embedding(ROWS, 4, initial, embeddings_regularizer=regularizer)
            with lockstep.embedding_scope() if in_scope else contextlib.nullcontext():
                embedding.build()
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.3))
        cls = Penalized if kind == "penalty" else keras.Sequential
        model = cls([keras.Input((), dtype="int64"), embedding, dense])
        steps = 2 if kind == "accumulated" else None
        optimizer = (keras.optimizers.SGD if in_scope else DenseSGD)(0.1, gradient_accumulation_steps=steps, **clip)
        model.compile(optimizer, "mse", run_eagerly=kind == "eager", jit_compile=False)
        model.fit(IDS[mine], LABELS[mine], batch_size=BATCH // world, epochs=2, shuffle=False, verbose=0)
        rows = np.asarray(embedding(np.arange(ROWS)))
        return [rows, *(np.asarray(v.value) for v in dense.weights)]


def trained(in_scope):
    """Returns for each kind and clipping the rows of the table, and the dense weights, after training."""
    cases = [(kind, clip) for kind in KINDS for clip in CLIPS] + [("penalty", {"global_clipnorm": 0.1})]
    return {f"{kind} {clip}": _trained(kind, clip, in_scope) for kind, clip in cases}
