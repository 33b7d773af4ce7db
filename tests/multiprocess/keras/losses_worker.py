"""Scaled losses and losses with masks: on the workers of a job, and in plain TensorFlow on all rows.

Each function returns the same in both: a job of W workers has batches of B rows each where the plain program has W·B.
"""

from __future__ import annotations

import contextlib

import numpy as np

# The rows of a batch of all workers.
TOGETHER = 4


def _scopes(plain):
    import hybridbackend.tensorflow as hb

    if plain:
        return contextlib.nullcontext, contextlib.nullcontext, 0, 1
    return hb.scope, hb.embedding_scope, hb.context.rank, hb.context.world_size


def _own(arrays, rank, world, together=TOGETHER):
    """Returns a worker's part of each batch: with two workers the first quarter, or the rest."""
    edges = {1: [0, together], 2: [0, together // 4, together]}[world]
    count = len(arrays[0])
    rows = [r for r in range(count) if edges[rank] <= r % together < edges[rank + 1]]
    return [array[rows] for array in arrays], edges[rank + 1] - edges[rank]


def scaled(plain=False):
    """Returns weights and scales after training with a scale that grows, and with gradients that are not finite."""
    import keras

    scope, embedding_scope, rank, world = _scopes(plain)
    rng = np.random.default_rng(1)
    features = rng.normal(size=(32, 3)).astype(np.float32)
    factor = np.ones([32, 1], np.float32)
    ids = np.arange(32) % 7
    overflowing, overflowing_table = features.copy(), factor.copy()
    overflowing[9] = 3e38  # a row of worker 1
    overflowing_table[13] = 1e30  # the gradient of one row of the table; the table is zeros, so the loss is finite
    found = {}
    for name, x, f in (
        ("grows", features, factor),
        ("infinite", overflowing, factor),
        ("infinite table", features, overflowing_table),
    ):
        (own_x, own_f, own_ids, own_y), batch = _own([x, f, ids, features[:, :1]], rank, world)
        keras.utils.set_random_seed(1)
        with scope():
            inputs = [keras.Input([3]), keras.Input([1]), keras.Input([], dtype="int64")]
            with embedding_scope():
                rows = keras.layers.Embedding(7, 1, embeddings_initializer="zeros")(inputs[2])
            output = keras.layers.Dense(1)(inputs[0]) + keras.layers.Multiply()([rows, inputs[1]])
            model = keras.Model(inputs, output)
            inner = keras.optimizers.SGD(0.05)
            model.compile(
                keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**33, dynamic_growth_steps=3), "mse"
            )
            model.fit([own_x, own_f, own_ids], own_y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
            scale = float(model.optimizer.dynamic_scale.numpy())
            found[name] = [*(np.asarray(w) for w in model.get_weights()), np.asarray(scale), inner.iterations.numpy()]
    return found


def masked(plain=False):
    """Returns weights after training with masks and weights of samples, whose sums differ between workers."""
    import keras

    scope, embedding_scope, rank, world = _scopes(plain)
    rng = np.random.default_rng(2)
    ids = rng.integers(1, 10, (24, 5))
    for row, length in enumerate(rng.integers(1, 6, 24)):
        ids[row, length:] = 0
    ids[:4, 1:] = 0
    truth = rng.normal(size=(24, 5, 1)).astype(np.float32)
    weights = rng.uniform(0, 3, (24, 5)).astype(np.float32)
    found = {}
    for mask, reduction, weighted in (
        (True, "sum_over_batch_size", False),
        (True, "mean_with_sample_weight", True),
        (False, "mean_with_sample_weight", True),
    ):
        (own_ids, own_truth, own_weights), batch = _own([ids, truth, weights], rank, world)
        keras.utils.set_random_seed(1)
        with scope():
            words = keras.Input([5], dtype="int64")
            with embedding_scope():
                vectors = keras.layers.Embedding(10, 4, mask_zero=mask)(words)
            outputs = [keras.layers.Dense(1)(vectors), keras.layers.Dense(1, activation="tanh")(vectors)]
            model = keras.Model(words, outputs)
            losses = [keras.losses.MeanSquaredError(reduction=reduction), keras.losses.MeanSquaredError()]
            model.compile(keras.optimizers.SGD(0.5), losses)
            both = [own_weights, own_weights] if weighted else None
            given = {"batch_size": batch, "shuffle": False, "verbose": 0}
            model.fit(own_ids, [own_truth, own_truth], sample_weight=both, **given)
            found[mask, reduction, weighted] = [np.asarray(w) for w in model.get_weights()]
    return found


def own_steps(plain=False):
    """Returns a weight after training with a masked loss, with unequal rows, in a `train_step` of the program's own."""
    import keras
    import tensorflow as tf

    scope, _, rank, world = _scopes(plain)
    x = np.random.default_rng(5).normal(size=(16, 3, 1)).astype(np.float32)
    mask = np.random.default_rng(6).random((16, 3)) < 0.6
    mask[:, 0] = True
    (own_x, own_mask), batch = _own([x, mask], rank, world)
    found = {}

    class Model(keras.Model):
        def __init__(self, scales, in_function, **more):
            super().__init__(**more)
            self.dense = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
            self.scales, self.loss_of = scales, keras.losses.MeanSquaredError()
            self.compute = tf.function(self.of_batch) if in_function else self.of_batch

        def of_batch(self, x, mask):
            output = self.dense(x)
            output._keras_mask = mask
            return self.loss_of(2 * x + 1, output)

        def train_step(self, data):
            x, mask = data
            with tf.GradientTape() as tape:
                loss = self.compute(x, mask)
                if self.scales:
                    loss = self.optimizer.scale_loss(loss)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    for scales, in_function, eagerly in (
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (True, True, False),
        (False, False, True),
        (True, False, True),
    ):
        with scope():
            model = Model(scales, in_function)
            model.dense.build([None, 3, 1])
            model.compile(keras.optimizers.SGD(0.2), run_eagerly=eagerly)
            model.fit(own_x, own_mask, batch_size=batch, shuffle=False, verbose=0)
            found[f"scales {scales}, in function {in_function}, eagerly {eagerly}"] = model.get_weights()
    return found


def own_loop(plain=False):
    """Returns a weight after steps of the program's own, with a masked loss of Keras."""
    import keras
    import tensorflow as tf

    scope, _, rank, world = _scopes(plain)
    x = np.arange(1, 9, dtype=np.float32).reshape(8, 1)
    mask = np.array([1, 0, 0, 1, 1, 1, 1, 0], bool)
    (own_x, own_mask), batch = _own([x, mask], rank, world)
    with scope():
        weight, optimizer = keras.Variable([[0.5]]), keras.optimizers.SGD(0.01)
        loss_of = keras.losses.MeanSquaredError()

        @tf.function
        def step(x, mask):
            with tf.GradientTape() as tape:
                output = tf.matmul(x, weight.value)
                output._keras_mask = mask
                loss = loss_of(x + 1, output)
            optimizer.apply(tape.gradient(loss, [weight]), [weight])

        for begin in range(0, len(own_x), batch):
            step(tf.constant(own_x[begin : begin + batch]), tf.constant(own_mask[begin : begin + batch]))
        return {"own loop": [weight.numpy()]}


def tensorflow1(plain=False):
    """Returns a weight after training with losses of TensorFlow 1, whose weights are partly zero."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    scope, embedding_scope, rank, world = _scopes(plain)
    rng = np.random.default_rng(3)
    x, weights = rng.normal(size=(24, 1)).astype(np.float32), rng.integers(0, 3, (24, 1)).astype(np.float32)
    ids = np.arange(24) % 5
    (own_x, own_weights, own_ids), batch = _own([x, weights, ids], rank, world)
    found = {}
    for reduction in (None, "weighted_mean", "weighted_sum_over_batch_size"):
        with tf.Graph().as_default(), scope():
            data = tf.data.Dataset.from_tensor_slices((own_x, own_weights, own_ids)).batch(batch)
            features, weight, numbers = tf1.data.make_one_shot_iterator(data).get_next()
            dense = tf1.get_variable("w", [1, 1], initializer=tf1.constant_initializer(0.5))
            with embedding_scope():
                table = tf1.get_variable("t", [5, 1], initializer=tf1.constant_initializer(0.25))
            output = tf.matmul(features, dense) + tf.nn.embedding_lookup(table, numbers)
            more = {} if reduction is None else {"reduction": reduction}
            loss = tf1.losses.mean_squared_error(features + 1, output, weight, **more)
            train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            rows = tf.nn.embedding_lookup(table, tf.range(5))
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for _ in range(6):
                    session.run(train)
                found[str(reduction)] = session.run([dense, rows])
    return found


def tensorflow1_rows(plain=False):
    """Returns a weight after training with losses of TensorFlow 1 of some of the rows, all with the same weight."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    scope, _, rank, world = _scopes(plain)
    x = np.random.default_rng(7).normal(size=(24, 1)).astype(np.float32)
    keep = np.random.default_rng(8).random(24) < 0.5
    (own_x, own_keep), batch = _own([x, keep], rank, world)
    found = {}
    for reduction in ("weighted_sum_by_nonzero_weights", "weighted_mean", "weighted_sum_over_batch_size"):
        with tf.Graph().as_default(), scope():
            data = tf.data.Dataset.from_tensor_slices((own_x, own_keep)).batch(batch)
            features, kept = tf1.data.make_one_shot_iterator(data).get_next()
            dense = tf1.get_variable("w", [1, 1], initializer=tf1.constant_initializer(0.5))
            masked = tf.boolean_mask(features + 1, kept), tf.boolean_mask(tf.matmul(features, dense), kept)
            loss = tf1.losses.mean_squared_error(*masked, reduction=reduction)
            train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for _ in range(6):
                    session.run(train)
                found[reduction] = session.run([dense])
    return found


def iterators():
    """Returns the numbers of warnings for a step with one iterator, and for steps with two; the last loss is a mean."""
    import tensorflow as tf

    import lockstep
    from tests.multiprocess.on_each_worker import logged

    tf1 = tf.compat.v1
    said = []
    for several, weighted in ((False, True), (True, True), (True, False)):
        with tf.Graph().as_default(), lockstep.scope(), logged("batches of other iterators") as lines:
            data = tf.data.Dataset.from_tensor_slices(np.ones([8, 1], np.float32)).batch(2)
            a = tf1.data.make_one_shot_iterator(data).get_next()
            b = tf1.data.make_one_shot_iterator(data).get_next() if several else a
            dense = tf1.get_variable("w", [1, 1])
            loss = tf1.losses.mean_squared_error(a, tf.matmul(a, dense), a if weighted else 1.0)
            loss += tf.reduce_mean(tf.square(tf.matmul(b, dense)))
            tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        said.append([f"The loss '{name}'" in line for line in lines for name in ("mean_squared_error/value:0",)])
    return said


def unknown():
    """Returns the numbers of warnings for losses of one number for a batch, of the program's own and of Keras."""
    import keras
    import tensorflow as tf

    import lockstep
    from tests.multiprocess.on_each_worker import logged

    said = []
    with lockstep.scope():
        for loss, flat in (
            (lambda y, p: tf.square(y - p), False),
            ("mse", True),
            (keras.losses.mean_absolute_error, True),
            (keras.losses.BinaryCrossentropy(from_logits=True), True),
            (lambda y, p: tf.reduce_mean(tf.square(y - p)), True),
            (lambda y, p: tf.reduce_mean(tf.square(y - p)), False),
        ):
            inputs = keras.Input([2])
            output = keras.layers.Dense(1)(inputs)
            model = keras.Model(inputs, keras.ops.squeeze(output, -1) if flat else output)
            model.compile("sgd", loss)
            with logged("one number for a batch") as lines:
                model.fit(np.ones([4, 2]) * lockstep.rank(), np.ones([4] if flat else [4, 1]), verbose=0)
            said.append(len(lines))
    return said
