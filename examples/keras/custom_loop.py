"""Trains with a loop of the program's own on all workers of a job: a sharded table, a dynamic one, and a `tf.function`.

python -m lockstep.launch -n 2 python examples/keras/custom_loop.py
"""

import keras
import numpy as np
import tensorflow as tf

import lockstep

keras.utils.set_random_seed(1)  # one and two workers then begin with the same weights
random = np.random.default_rng(0)
user, word = random.integers(0, 1000, [2, 4096])
rows = tf.data.Dataset.from_tensor_slices((user, word, (user % 2).astype(np.float32)[:, np.newaxis]))

with lockstep.scope():
    batches = lockstep.data.shard(rows).batch(64)  # each worker takes its share of the rows
    with lockstep.embedding_scope():
        users = keras.layers.Embedding(1000, 8)
        users.build()  # the table is sharded, because it is made inside of embedding_scope()
    words = lockstep.keras.DynamicEmbedding(8)  # any int64 is a key
    click = keras.Sequential([keras.layers.Concatenate(), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adagrad(0.5)

    @tf.function
    def step(user, word, label):
        """Returns this worker's loss; the optimizer applies the mean of all workers' gradients."""
        with tf.GradientTape() as tape:
            scores = click([users(user), words(word, training=True)])
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, scores))
        variables = users.trainable_variables + words.trainable_variables + click.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    for epoch in range(3):
        losses = [step(*batch) for batch in batches]
        print(f"epoch {epoch}: loss {lockstep.allreduce(tf.reduce_mean(losses), op='mean').numpy():.4f}")
