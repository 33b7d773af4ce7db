"""A worker of evaluation_test.py: metrics, an evaluation during training, and an export of the trained model."""

import numpy as np
import tensorflow.compat.v1 as tf

import hybridbackend.tensorflow as hb
from lockstep.data import ParquetDataset

ROWS, DIM = 23, 4
# Columns in the order of a file, and the values to which the rows of each column's table are trained.
COLUMNS = {"z": 3.0, "b": 5.0, "a": 7.0}
CURVES = [("ROC", "trapezoidal"), ("PR", "careful_interpolation"), ("PR", "minoring")]


def samples(rank):
    """Returns labels, predictions and weights of a worker's batches: some are empty, and sizes differ by worker."""
    rng = np.random.default_rng(100 + rank)
    for size in (30 + 7 * rank, 0 if rank == 1 else 11, 5 * rank, 64):
        labels = rng.integers(0, 2, size)
        yield labels, ((labels + 2 * rng.random(size)) / 3).astype(np.float32), rng.random(size).astype(np.float32)


def metrics_of(module, labels, predictions, weights):
    built = {
        "accuracy": module.accuracy(labels, tf.round(predictions), weights),
        "mean": module.mean(predictions, weights),
    }
    for curve, method in CURVES:
        built[f"{curve} {method}"] = module.auc(labels, predictions, weights, curve=curve, summation_method=method)
    if module is hb.metrics:
        built["gauc"] = module.gauc(labels, predictions, tf.cast(3 * weights, tf.int64))
    return built


def placeholders():
    return tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])


def streamed_metrics():
    """Returns values after each update, by metric: the update's result, and the value read afterwards."""
    with tf.Graph().as_default(), hb.scope(), tf.Session() as session:
        feeds = placeholders()
        built = metrics_of(hb.metrics, *feeds)
        session.run(tf.local_variables_initializer())
        results = {name: [] for name in built}
        for batch in samples(hb.context.rank):
            updated = session.run({n: update for n, (_, update) in built.items()}, dict(zip(feeds, batch, strict=True)))
            values = session.run({n: value for n, (value, _) in built.items()})
            for name in built:
                results[name].append([float(updated[name]), float(values[name])])
        return results


def dataset(ids):
    return tf.data.Dataset.from_tensor_slices(np.array(ids, np.int64)).batch(2)


def evaluated_ids(rank):
    """Returns a worker's ids. Worker 0 has none, the others one and two batches (the last one short)."""
    return [[], [3], [7, 22, 0]][rank]


def table():
    # TensorFlow names the scope: training, evaluation and export each count from the beginning.
    with hb.embedding_scope(), tf.variable_scope(None, "input"):
        return tf.get_variable("table", [ROWS, DIM], initializer=tf.zeros_initializer())


def train_and_evaluate(folder):
    """Trains five steps that add their id to every row of the table; evaluates after the 2nd, 4th and last.

    The evaluation computes the share of ids whose row has the value trained so far, and the share of even ids.
    """
    rank = hb.context.rank
    history = []

    def evaluated():
        ids = tf.data.make_one_shot_iterator(dataset(evaluated_ids(rank))).get_next()
        rows = tf.nn.embedding_lookup(table(), ids)
        steps = tf.cast(tf.train.get_global_step(), tf.float32)
        error = tf.abs(rows - steps * tf.cast(ids, tf.float32)[:, tf.newaxis])
        as_trained = tf.reduce_all(error < 1e-4, axis=1)  # the mean of three gradients is rounded
        return {
            "trained": hb.metrics.accuracy(tf.ones_like(ids, tf.bool), as_trained),
            "even": hb.metrics.accuracy(tf.zeros_like(ids), ids % 2),
        }

    with tf.Graph().as_default(), hb.scope():
        # There are more batches than steps, so `taken` shows an evaluation that takes one.
        element = tf.data.make_one_shot_iterator(tf.data.Dataset.range(100 * rank, 100 * rank + 50).batch(1)).get_next()
        ids = tf.range(ROWS, dtype=tf.int64)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table(), ids) * tf.cast(ids, tf.float32)[:, tf.newaxis])
        train_op = tf.train.GradientDescentOptimizer(-1.0).minimize(loss, tf.train.get_or_create_global_step())
        hook = hb.train.EvaluationHook(
            evaluated, every_n_iter=2, summary_dir=f"{folder}/summaries", history=history, at_end=True
        )
        taken = []
        with tf.train.MonitoredTrainingSession(checkpoint_dir=f"{folder}/checkpoints", hooks=[hook]) as session:
            for _ in range(5):
                taken.append(int(session.run([element, train_op])[0][0]) - 100 * rank)
        exported = hb.train.export(f"{folder}/export", tf.train.latest_checkpoint(f"{folder}/checkpoints"), served)
    return {
        "history": [{name: float(value) for name, value in record.items()} for record in history],
        "taken": taken,
        "exported": exported,
    }


def served():
    ids = tf.placeholder(tf.int64, [None], name="ids")
    rows = tf.nn.embedding_lookup(table(), ids)
    return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})


def refused_export(folder):
    """Returns the chief's error for the export of a model with a collective."""

    def with_metric():
        hb.metrics.accuracy(tf.zeros([2]), tf.zeros([2]))
        return served()

    if not hb.context.is_chief:
        return None
    try:
        hb.train.export(f"{folder}/refused", tf.train.latest_checkpoint(f"{folder}/checkpoints"), with_metric)
    except ValueError as error:
        return str(error)
    return "not refused"


def rows_of_columns(batch, names):
    """Returns the rows of each column, from a table and from a feature column; positions determine both names."""
    rows = {}
    for i, name in enumerate(names):
        table = tf.get_variable(f"place_{i}", [ROWS, 1], initializer=tf.zeros_initializer())
        rows[f"{name}_of_table"] = tf.nn.embedding_lookup(table, batch[name])
        column = tf.feature_column.categorical_column_with_identity(name, ROWS)
        column = tf.feature_column.embedding_column(column, 1, initializer=tf.zeros_initializer())
        rows[f"{name}_of_layer"] = tf.feature_column.input_layer(batch, [column])
    return rows


def train_and_export_columns(folder):
    """Trains with the columns in the order of a batch, and exports with the file's order."""
    with tf.Graph().as_default(), hb.scope():
        batch = tf.data.make_one_shot_iterator(ParquetDataset(f"{folder}/columns.parquet", ROWS)).get_next()
        # Only one worker's batch has each row.
        rows = rows_of_columns(batch, [name for name in batch])
        loss = sum(COLUMNS[name.partition("_")[0]] * tf.reduce_mean(values) for name, values in rows.items())
        train_op = tf.train.GradientDescentOptimizer(-ROWS).minimize(loss, tf.train.get_or_create_global_step())
        with tf.train.MonitoredTrainingSession(checkpoint_dir=f"{folder}/columns") as session:
            session.run(train_op)

        def served_columns():
            inputs = {name: tf.placeholder(tf.int64, [None], name) for name in COLUMNS}
            return tf.saved_model.predict_signature_def(inputs, rows_of_columns(inputs, COLUMNS))

        return hb.train.export(
            f"{folder}/columns_export", tf.train.latest_checkpoint(f"{folder}/columns"), served_columns
        )


def export_only(folder):
    """Exports and does nothing else; no worker waits for another."""
    tf.disable_v2_behavior()
    exported = hb.train.export(f"{folder}/export_only", tf.train.latest_checkpoint(f"{folder}/checkpoints"), served)
    return exported, refused_export(folder), hb.context.is_initialized


def work(folder):
    """Runs all parts in the order of this file."""
    tf.disable_v2_behavior()
    return {
        "metrics": streamed_metrics(),
        **train_and_evaluate(folder),
        "columns": train_and_export_columns(folder),
        "refused": refused_export(folder),
    }
