"""Trains a model of Keras 3 on all workers of a job, exports it, and serves the export in stock TensorFlow.

It reads the rows that `clicks.py` writes:

    python examples/keras/clicks.py
    python -m lockstep.launch -n 2 python examples/keras/train.py
"""

import keras
import tensorflow as tf

import lockstep

with lockstep.scope():  # data parallel: gradients are the mean over the workers
    rows = lockstep.data.ParquetDataset("clicks.parquet", batch_size=64)  # each worker reads its share
    rows = rows.map(lambda row: ({"user": row["user"], "query": row["query"]}, row["click"]))
    user = keras.Input([], name="user", dtype="int64")
    query = keras.Input([], name="query", dtype="string")
    with lockstep.embedding_scope():  # sharded by rows over the workers
        user_vector = keras.layers.Embedding(1_000_000, 16)(user)
    query_vector = lockstep.keras.DynamicEmbedding(16, key_dtype="string")(query)  # no vocabulary
    vectors = keras.layers.Concatenate()([user_vector, query_vector])
    click = keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(32, "relu")(vectors))
    model = keras.Model({"user": user, "query": query}, click)
    model.compile(keras.optimizers.Adagrad(0.5), "binary_crossentropy", metrics=["auc"])
    model.fit(rows, epochs=3, shuffle=False, verbose=2)
    lockstep.keras.export(model, "served", verbose=False)

served = tf.saved_model.load("served")  # stock operations of TensorFlow
print(served.serve({"user": tf.constant([3, 4], tf.int64), "query": tf.constant(["query 3", "query 4"])}))
