"""The examples of HybridBackend's documentation, third generation, as they are written there; the dots are filled in.

Runs under `--tf1`: `import tensorflow` means TensorFlow 1.

Usage: hybridbackend_generation_3.py TRAIN.parquet EVAL.parquet FOLDER
"""

import sys

import tensorflow as tf

import hybridbackend.tensorflow as hb

train_file, eval_file, folder = sys.argv[1:]
bucket_size, dim_size, lr = 97, 8, 0.5
numeric_fields, categorical_fields = ["price"], ["item"]


def my_model(inputs, training):
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        weights = tf.get_variable("weights", [dim_size, 1], initializer=tf.ones_initializer(), trainable=training)
        with hb.embedding_scope():
            embedding_weights = tf.get_variable("emb_weights", shape=[bucket_size, dim_size])
    embedding = tf.nn.embedding_lookup_sparse(embedding_weights, inputs["item"], None, combiner="sum")
    return {"score": tf.sigmoid(tf.matmul(embedding, weights) + tf.cast(inputs["price"], tf.float32))}


def batches(file):
    return hb.data.ParquetDataset(file, batch_size=50)


def example_2_2():
    features = tf.data.make_one_shot_iterator(batches(train_file)).get_next()
    with hb.scope():
        price = tf.cast(features["price"], tf.float32)
        logits = price * tf.get_variable("slope", [], initializer=tf.zeros_initializer())
        tf.losses.sigmoid_cross_entropy(features["label"], logits)
        loss = tf.losses.get_total_loss()
        # predefined optimizer
        opt = tf.train.GradientDescentOptimizer(learning_rate=lr)
        train_op = opt.minimize(loss)
        with tf.train.MonitoredTrainingSession("") as sess:
            while not sess.should_stop():
                print("2.2 loss", sess.run([loss, train_op])[0], flush=True)


def example_3_2():
    features = tf.data.make_one_shot_iterator(batches(train_file)).get_next()
    ids = features["item"]
    with hb.scope():
        with hb.embedding_scope():
            embedding_weights = tf.get_variable("emb_weights", shape=[bucket_size, dim_size])
        embedding = tf.nn.embedding_lookup(embedding_weights, ids)
        tf.losses.sigmoid_cross_entropy(features["label"], tf.reduce_sum(embedding, axis=1))
        loss = tf.losses.get_total_loss()
        # predefined optimizer
        opt = tf.train.GradientDescentOptimizer(learning_rate=lr)
        train_op = opt.minimize(loss)
        with tf.train.MonitoredTrainingSession("") as sess:
            while not sess.should_stop():
                print("3.2 loss", sess.run([loss, train_op])[0], flush=True)


def eval_fn():
    batch = tf.data.make_one_shot_iterator(batches(eval_file)).get_next()
    eval_labels = batch["label"]
    eval_logits = score(batch)
    auc_and_update = hb.metrics.auc(labels=eval_labels, predictions=eval_logits)
    return {"auc": auc_and_update}


def score(batch):
    rows = tf.shape(batch["item"], out_type=tf.int64)[0]
    indices = tf.stack([tf.range(rows), tf.zeros([rows], tf.int64)], axis=1)
    inputs = {"price": batch["price"][:, tf.newaxis], "item": tf.SparseTensor(indices, batch["item"], [rows, 1])}
    return tf.squeeze(my_model(inputs, training=True)["score"], axis=1)


def example_3_3(checkpoint_dir):
    hooks = []
    with tf.Graph().as_default():
        with hb.scope():
            batch = tf.data.make_one_shot_iterator(batches(train_file)).get_next()
            loss = tf.losses.log_loss(batch["label"], score(batch))
            train_op = tf.train.AdagradOptimizer(lr).minimize(loss, tf.train.get_or_create_global_step())
            hooks.append(hb.train.EvaluationHook(eval_fn, every_n_iter=5, summary_dir=f"{folder}/summary"))

            with tf.train.MonitoredTrainingSession("", hooks=hooks, checkpoint_dir=checkpoint_dir) as sess:
                while not sess.should_stop():
                    sess.run(train_op)


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


def example_3_4(export_dir_base, checkpoint_dir):
    checkpoint_path = tf.train.latest_checkpoint(checkpoint_dir)
    print("3.4 exported", hb.train.export(export_dir_base, checkpoint_path, _on_export), flush=True)


for example in (example_2_2, example_3_2):
    with tf.Graph().as_default():
        example()
example_3_3(f"{folder}/checkpoints")
example_3_4(f"{folder}/export", f"{folder}/checkpoints")
