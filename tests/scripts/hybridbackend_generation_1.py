"""The examples of HybridBackend's documentation, first generation, as they are written there; the dots are filled in.

Runs under `--tf1`: `import tensorflow` means TensorFlow 1.

Usage: hybridbackend_generation_1.py TRAIN.parquet EVAL.parquet FOLDER
"""

import sys

import tensorflow as tf

import hybridbackend.tensorflow as hb

train_file, eval_file, folder = sys.argv[1:]
items, batch_size, lr = 97, 50, 0.5
numeric_fields, categorical_fields = ["price"], ["item"]


def my_logits(item, price):
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
        table = tf.get_variable("table", [items], initializer=tf.zeros_initializer())
    return slope * tf.cast(price, tf.float32) + tf.gather(table, item)


def my_model(inputs, training):
    del training
    item = tf.sparse.reshape(inputs["item"], [-1]).values
    return {"score": tf.sigmoid(my_logits(item, tf.reshape(inputs["price"], [-1])))}


def read(file):
    return hb.data.make_iterator(hb.data.ParquetDataset(file, batch_size=batch_size)).get_next()


def train(name, train_op, loss):
    server = hb.train.Server()
    with hb.train.MonitoredTrainingSession(server.target, is_chief=True, hooks=[]) as sess:
        while not sess.should_stop():
            print(name, "loss", sess.run([loss, train_op])[0], flush=True)


def predefined_optimizer():
    features = read(train_file)
    tf.losses.sigmoid_cross_entropy(features["label"], my_logits(features["item"], features["price"]))
    loss = tf.losses.get_total_loss()
    opt = hb.train.GradientDescentOptimizer(learning_rate=lr)
    train("predefined", opt.minimize(loss), loss)


def customized_optimizer():
    @hb.train.wraps_optimizer
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

    features = read(train_file)
    tf.losses.sigmoid_cross_entropy(features["label"], my_logits(features["item"], features["price"]))
    loss = tf.losses.get_total_loss()
    opt = MyOptimizer(learning_rate=lr)
    train_op = opt.minimize(loss)
    train("customized", train_op, loss)


class Evaluation(tf.train.SessionRunHook):
    """A hook that prints, after training, the metrics of some batches of each worker."""

    def __init__(self, update_op, metrics, steps):
        self._update_op, self._metrics, self._steps = update_op, metrics, steps

    def end(self, session):
        for _ in range(self._steps):
            session.run(self._update_op)
        for name, value in session.run(self._metrics).items():
            print("session", name, value, flush=True)


def work_with_monitored_training_session(checkpoint_dir, export_dir_base):
    # Place graph on specific GPU.
    with tf.device(hb.train.device_setter()):
        # Read from a parquet file.
        with tf.device("/cpu:0"):
            train_ds = hb.data.ParquetDataset(train_file, batch_size=batch_size)
            train_ds = train_ds.prefetch(4)
            eval_ds = hb.data.ParquetDataset(eval_file, batch_size=batch_size)
            eval_ds = eval_ds.prefetch(4)
        step = tf.train.get_or_create_global_step()
        train_it = hb.data.make_iterator(train_ds)
        train_features = train_it.get_next()
        with tf.control_dependencies([train_features["label"]]):
            step_op = tf.assign_add(step, 1)
        with tf.control_dependencies([step_op]):
            logits = my_logits(train_features["item"], train_features["price"])
        tf.losses.sigmoid_cross_entropy(train_features["label"], logits)
        loss = tf.losses.get_total_loss()
        # Use auto-generated wrapper for predefined optimizer.
        opt = hb.train.GradientDescentOptimizer(learning_rate=lr)
        train_op = opt.minimize(loss)

        # Update evaluation metrics
        eval_features = hb.data.make_iterator(eval_ds).get_next()
        eval_logits = my_logits(eval_features["item"], eval_features["price"])
        accuracy, eval_update_op = hb.metrics.accuracy(eval_features["label"], tf.cast(eval_logits > 0, tf.int64))
        eval_metric_dict = {"accuracy": accuracy}

    # Create a server by reading cluster information in `hb.context`.
    server = hb.train.Server()

    # All workers must be chief to initialize variables.
    with hb.train.MonitoredTrainingSession(
        server.target,
        is_chief=True,
        hooks=[
            tf.train.CheckpointSaverHook(checkpoint_dir, save_steps=100000),
            Evaluation(eval_update_op, eval_metric_dict, steps=6),
        ],
    ) as sess:
        while not sess.should_stop():
            sess.run(train_op)

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

    checkpoint_path = tf.train.latest_checkpoint(checkpoint_dir)
    print("session exported", hb.saved_model.export(export_dir_base, checkpoint_path, _on_export), flush=True)


for example in (predefined_optimizer, customized_optimizer):
    with tf.Graph().as_default():
        example()
with tf.Graph().as_default():
    work_with_monitored_training_session(f"{folder}/checkpoints", f"{folder}/export")
