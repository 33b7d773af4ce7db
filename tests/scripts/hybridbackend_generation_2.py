"""The examples of HybridBackend's documentation, second generation, as they are written there; the dots are filled in.

Runs under `--tf1`: `import tensorflow` means TensorFlow 1.

Usage: hybridbackend_generation_2.py TRAIN.parquet EVAL.parquet FOLDER
"""

import sys

import tensorflow as tf

import hybridbackend.tensorflow as hb

train_file, eval_file, folder = sys.argv[1:]
bucket_size, dim_size, lr = 97, 1, 0.5
numeric_fields, categorical_fields = ["price"], ["item"]


def example_1_2():
    print(f"{hb.context.rank}-of-{hb.context.world_size}", flush=True)


def example_1_3():
    print("1.3 before", hb.context.options.grad_nbuckets, flush=True)
    hb.context.options.grad_nbuckets = 2
    print("1.3 after", hb.context.options.grad_nbuckets, flush=True)


def batches(file):
    return hb.data.ParquetDataset(file, batch_size=50)


def read():
    return hb.data.make_one_shot_iterator(batches(train_file)).get_next()


def replicated_logits(features):
    slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
    table = tf.get_variable("table", [bucket_size], initializer=tf.zeros_initializer())
    return slope * tf.cast(features["price"], tf.float32) + tf.gather(table, features["item"])


def train(name, train_op, loss):
    with hb.scope(), tf.train.MonitoredTrainingSession("") as sess:
        while not sess.should_stop():
            print(name, "loss", sess.run([loss, train_op])[0], flush=True)


def example_2_2():
    @hb.function(grad_nbuckets=2)
    def foo():
        features = read()
        tf.losses.sigmoid_cross_entropy(features["label"], replicated_logits(features))
        loss = tf.losses.get_total_loss()
        # predefined optimizer
        opt = tf.train.GradientDescentOptimizer(learning_rate=lr)
        return opt.minimize(loss), loss

    train("2.2", *foo())


def example_2_3():
    with hb.scope(grad_nbuckets=2):
        features = read()
        tf.losses.sigmoid_cross_entropy(features["label"], replicated_logits(features))
        loss = tf.losses.get_total_loss()
        # predefined optimizer
        opt = tf.train.GradientDescentOptimizer(learning_rate=lr)
        train_op = opt.minimize(loss)
    train("2.3", train_op, loss)


def example_2_4():
    @hb.wraps
    class MyOptimizer(tf.train.Optimizer):
        def __init__(self, learning_rate):
            super().__init__(use_locking=False, name="MyOptimizer")
            self._learning_rate = learning_rate

        def _resource_apply_dense(self, grad, handle):
            return tf.raw_ops.AssignSubVariableOp(resource=handle.handle, value=self._learning_rate * grad)

        def _resource_apply_sparse(self, grad, handle, indices):
            return tf.raw_ops.ResourceScatterSub(
                resource=handle.handle, indices=indices, updates=self._learning_rate * grad
            )

    features = read()
    logits = replicated_logits(features)
    tf.losses.sigmoid_cross_entropy(features["label"], logits)

    def foo():
        loss = tf.losses.get_total_loss()
        opt = MyOptimizer(learning_rate=lr)
        train_op = opt.minimize(loss)
        return train_op, loss

    train("2.4", *foo())


def sharded_logits(features, embedding_weights):
    slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
    embedding = tf.nn.embedding_lookup(embedding_weights, features["item"])
    return slope * tf.cast(features["price"], tf.float32) + tf.squeeze(embedding, axis=1)


def example_sharding_2_2():
    @hb.function(grad_nbuckets=2)
    def foo():
        features = read()
        ids = features["item"]
        with hb.scope(sharding=True):
            embedding_weights = tf.get_variable(
                "emb_weights", shape=[bucket_size, dim_size], initializer=tf.zeros_initializer()
            )
        embedding = tf.nn.embedding_lookup(embedding_weights, ids)
        slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
        logits = slope * tf.cast(features["price"], tf.float32) + tf.squeeze(embedding, axis=1)
        tf.losses.sigmoid_cross_entropy(features["label"], logits)
        loss = tf.losses.get_total_loss()
        # predefined optimizer
        opt = tf.train.GradientDescentOptimizer(learning_rate=lr)
        return opt.minimize(loss), loss

    train("sharding 2.2", *foo())


def model(batch):
    """Returns logits; reuses the table's variable if it exists."""
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
        with hb.scope(sharding=True):
            embedding_weights = tf.get_variable(
                "emb_weights", shape=[bucket_size, dim_size], initializer=tf.zeros_initializer()
            )
    ids = batch["item"]
    embedding = tf.nn.embedding_lookup(embedding_weights, ids)
    return slope * tf.cast(batch["price"], tf.float32) + tf.squeeze(embedding, axis=1)


evaluated = []


def eval_fn():
    batch = hb.data.make_one_shot_iterator(batches(eval_file)).get_next()
    eval_labels, eval_logits = batch["label"], tf.sigmoid(model(batch))
    auc_and_update = hb.metrics.auc(labels=eval_labels, predictions=eval_logits)
    evaluated.append(auc_and_update[0])
    return {"auc": auc_and_update}


class LastEvaluation(tf.train.SessionRunHook):
    """A hook that prints the results of the last evaluation after training."""

    def end(self, session):
        print("evaluation 2.3 evaluated", session.run(evaluated[-1]), flush=True)


def example_evaluation_2_3(checkpoint_dir):
    hooks = [tf.train.CheckpointSaverHook(checkpoint_dir, save_steps=100000), LastEvaluation()]
    with tf.Graph().as_default():
        train_ds = batches(train_file)
        with hb.scope():
            batch = hb.data.make_one_shot_iterator(train_ds).get_next()
            loss = tf.losses.sigmoid_cross_entropy(batch["label"], model(batch))
            step = tf.train.get_or_create_global_step()
            train_op = tf.train.GradientDescentOptimizer(lr).minimize(loss, step)

            with tf.train.MonitoredTrainingSession("", hooks=hooks, eval_every_n_iter=10, eval_fn=eval_fn) as sess:
                while not sess.should_stop():
                    print("evaluation 2.3 loss", sess.run([loss, train_op])[0], flush=True)
    print("evaluation 2.3 hooks", len(hooks), flush=True)


def my_model(inputs, training):
    del training
    item = tf.sparse.reshape(inputs["item"], [-1]).values
    return {"score": tf.sigmoid(model({"item": item, "price": tf.reshape(inputs["price"], [-1])}))}


# Export trained models.
def _on_export():
    example_spec = {}
    for f in numeric_fields:
        example_spec[f] = tf.io.FixedLenFeature([1], dtype=tf.int64)
    for f in categorical_fields:
        example_spec[f] = tf.io.VarLenFeature(dtype=tf.int64)

    serialized_examples = tf.placeholder(dtype=tf.string, shape=[None], name="input")
    inputs = tf.io.parse_example(serialized_examples, example_spec)

    outputs = my_model(inputs, training=False)
    return tf.saved_model.predict_signature_def(inputs, outputs)


def example_exporting_2_4(export_dir_base, checkpoint_dir):
    checkpoint_path = tf.train.latest_checkpoint(checkpoint_dir)
    print("2.4 exported", hb.train.export(export_dir_base, checkpoint_path, _on_export), flush=True)


example_1_2()
example_1_3()
for example in (example_2_2, example_2_3, example_2_4, example_sharding_2_2):
    with tf.Graph().as_default():
        example()
example_evaluation_2_3(f"{folder}/checkpoints")
example_exporting_2_4(f"{folder}/export", f"{folder}/checkpoints")
