"""The estimator of HybridBackend's documentation, first generation, as it is written there; the dots are filled in.

Runs under `--tf1`. Usage: hybridbackend_generation_1_estimator.py TRAIN.parquet EVAL.parquet FOLDER
"""

import sys

import tensorflow as tf

import hybridbackend.tensorflow as hb

train_file, eval_file, folder = sys.argv[1:]
items, batch_size, lr = 97, 50, 0.5
numeric_fields, categorical_fields = ["price"], ["item"]


def model_fn(features, labels, mode, params):
    item, price = features["item"], features["price"]
    if isinstance(item, tf.SparseTensor):
        item = tf.sparse.reshape(item, [-1]).values
    slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
    table = tf.get_variable("table", [items], initializer=tf.zeros_initializer())
    logits = slope * tf.cast(price, tf.float32) + tf.gather(table, item)
    if mode != tf.estimator.ModeKeys.PREDICT:
        tf.losses.sigmoid_cross_entropy(labels, logits)
        loss = tf.losses.get_total_loss()
    if mode == tf.estimator.ModeKeys.TRAIN:
        opt = hb.train.AdagradOptimizer(learning_rate=lr)
        train_op = opt.minimize(loss)
        step = tf.train.get_or_create_global_step()
        train_op = opt.minimize(loss, global_step=step)
        return hb.estimator.EstimatorSpec(mode=tf.estimator.ModeKeys.TRAIN, loss=loss, train_op=train_op)
    if mode == tf.estimator.ModeKeys.EVAL:
        # Parallel evaluation is enabled by default.
        return hb.estimator.EstimatorSpec(
            mode=tf.estimator.ModeKeys.EVAL,
            loss=loss,
            eval_metric_ops={"auc": hb.metrics.auc(labels, tf.sigmoid(logits))},
        )
    if mode == tf.estimator.ModeKeys.PREDICT:
        return hb.estimator.EstimatorSpec(mode=tf.estimator.ModeKeys.PREDICT, predictions={"score": tf.sigmoid(logits)})


def dataset(file):
    return hb.data.ParquetDataset(file, batch_size=batch_size).map(lambda batch: (batch, batch.pop("label")))


def train_input_fn():
    return dataset(train_file)


def eval_input_fn():
    return dataset(eval_file)


model = hb.estimator.Estimator(model_fn=model_fn, model_dir=f"{folder}/estimator")
train_spec = tf.estimator.TrainSpec(input_fn=train_input_fn)
eval_spec = tf.estimator.EvalSpec(input_fn=eval_input_fn)

# Train and evaluate the estimator.
hb.estimator.train_and_evaluate(model, train_spec, eval_spec)


def _on_export():
    inputs = {}
    for f in numeric_fields:
        inputs[f] = tf.placeholder(dtype=tf.int64, shape=[None], name=f)
    for f in categorical_fields:
        # Feed sparse placeholders using `tf.SparseTensorValue`
        inputs[f] = tf.sparse_placeholder(dtype=tf.int64, name=f)
    return tf.estimator.export.ServingInputReceiver(inputs, inputs)


estimator, export_dir_base = model, f"{folder}/export"
print("estimator auc", estimator.evaluate(eval_input_fn)["auc"], flush=True)
print("estimator exported", estimator.export_saved_model(export_dir_base, _on_export), flush=True)
