"""A model with a sharded table, trained by an estimator, and by plain TensorFlow on the same rows."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

from tests.multiprocess.on_each_worker import Listener, Stop

ROWS, BATCH, ITEMS, DIM = 96, 8, 23, 4
HELD_OUT = 37


def data(seed, rows):
    rng = np.random.default_rng(seed)
    item = rng.integers(0, ITEMS, rows)
    return {"item": item, "price": rng.normal(size=rows).astype(np.float32)}, (item % 2).astype(np.float32)


def table():
    return np.random.default_rng(7).normal(size=[ITEMS, DIM]).astype(np.float32)


def logits_of(features, embedding_scope):
    import tensorflow.compat.v1 as tf1

    with embedding_scope():
        weights = tf1.get_variable("table", initializer=table())
    hidden = tf.nn.embedding_lookup(weights, features["item"])
    hidden = tf.concat([hidden, features["price"][:, tf.newaxis]], axis=1)
    kernel = tf1.get_variable("dense/kernel", [DIM + 1, 1], initializer=tf1.ones_initializer())
    return tf.squeeze(hidden @ kernel, 1)


def plain(folder):
    """Returns weights after one pass, and loss, AUC and predictions on held-out rows, all by plain TensorFlow."""
    import contextlib

    import tensorflow.compat.v1 as tf1

    with tf.Graph().as_default(), tf1.Session() as session:
        features = {"item": tf1.placeholder(tf.int64, [None]), "price": tf1.placeholder(tf.float32, [None])}
        labels = tf1.placeholder(tf.float32, [None])
        logits = logits_of(features, contextlib.nullcontext)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        train = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        auc, update = tf1.metrics.auc(labels, tf.sigmoid(logits))
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])

        def feed(columns, truth, rows):
            return {features[name]: column[rows] for name, column in columns.items()} | {labels: truth[rows]}

        columns, truth = data(0, ROWS)
        for start in range(0, ROWS, 2 * BATCH):
            session.run(train, feed(columns, truth, slice(start, start + 2 * BATCH)))
        weights = {v.op.name: session.run(v) for v in tf1.trainable_variables()}
        columns, truth = data(1, HELD_OUT)
        predicted, _ = session.run([tf.sigmoid(logits), update], feed(columns, truth, slice(None)))
        return weights, session.run(auc), predicted


def shares(rank, world):
    """Returns input functions: this worker's part of each training batch; every `world`th batch of held-out rows."""

    def train_input_fn():
        columns, truth = data(0, ROWS)
        rows = np.arange(ROWS).reshape(-1, world, 2 * BATCH // world)[:, rank].ravel()
        return dataset(columns, truth, rows, 2 * BATCH // world)

    def eval_input_fn():
        columns, truth = data(1, HELD_OUT)
        # Worker 0 has only one row, so workers have different numbers of batches.
        rows = np.arange(HELD_OUT) if world == 1 else np.arange(1) if rank == 0 else np.arange(1, HELD_OUT)
        return dataset(columns, truth, rows, 5)

    return train_input_fn, eval_input_fn


def dataset(columns, truth, rows, batch):
    return tf.data.Dataset.from_tensor_slices(({n: c[rows] for n, c in columns.items()}, truth[rows])).batch(batch)


def model_fn(features, labels, mode, params):
    import tensorflow.compat.v1 as tf1

    import hybridbackend.tensorflow as hb

    logits = logits_of(features, hb.embedding_scope)
    predictions = {"score": tf.sigmoid(logits)}
    keys = hb.estimator.ModeKeys
    if mode == keys.PREDICT:
        return hb.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == keys.EVAL:
        metrics = {
            "auc": tf1.metrics.auc(labels, predictions["score"]),
            "auc_of_all": hb.metrics.auc(labels, predictions["score"]),
        }
        return hb.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = tf1.train.AdagradOptimizer(params["lr"])
    train_op = optimizer.minimize(loss, tf1.train.get_global_step())
    return hb.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def serving_input_fn():
    import tensorflow.compat.v1 as tf1

    import hybridbackend.tensorflow as hb

    inputs = {"item": tf1.placeholder(tf.int64, [None]), "price": tf1.placeholder(tf.float32, [None])}
    return hb.estimator.export.ServingInputReceiver(inputs, inputs)


def estimate(folder):
    """Calls everything that an estimator offers, and returns the results."""
    import hybridbackend.tensorflow as hb

    rank, world = hb.context.rank, hb.context.world_size
    train_input_fn, eval_input_fn = shares(rank, world)
    config = hb.estimator.RunConfig(save_checkpoints_steps=4, save_summary_steps=2, log_step_count_steps=2)
    model = hb.estimator.Estimator(model_fn, model_dir=f"{folder}/model", config=config, params={"lr": 0.1})
    values, _ = hb.estimator.train_and_evaluate(
        model,
        hb.estimator.TrainSpec(train_input_fn),
        hb.estimator.EvalSpec(eval_input_fn, steps=None, throttle_secs=0),
    )
    again = model.evaluate(eval_input_fn)
    stopped = model.evaluate(eval_input_fn, hooks=[Stop(after=3 if rank == world - 1 else None)])
    of_three = model.evaluate(eval_input_fn, steps=3)
    predicted = [float(p["score"]) for p in model.predict(eval_input_fn)]
    first = next(model.predict(eval_input_fn))["score"] if rank == 0 else None
    history = []
    hb.estimator.train_and_evaluate(
        model,
        hb.estimator.TrainSpec(train_input_fn),
        hb.estimator.EvalSpec(eval_input_fn, steps=None),
        eval_every_n_iter=3,
        eval_history=history,
    )
    exported = model.export_saved_model(f"{folder}/export", serving_input_fn)
    return {
        "values": values,
        "again": again,
        "stopped": stopped,
        "of_three": of_three,
        "predicted": predicted,
        "first": first,
        "history": history,
        "exported": exported,
        "steps": int(model.get_variable_value("global_step")),
    }


def tell(folder):
    """Trains in two calls, with exporters of every kind, and warm-starts another model. Returns the results."""
    import tensorflow.compat.v1 as tf1

    import hybridbackend.tensorflow as hb
    from lockstep.estimator import BestExporter, FinalExporter, LatestExporter

    train_input_fn, eval_input_fn = shares(hb.context.rank, hb.context.world_size)
    config = hb.estimator.RunConfig(f"{folder}/model", save_checkpoints_steps=2, tf_random_seed=5)
    model = hb.estimator.Estimator(model_fn, config=config, params={"lr": 0.1})
    exporters = [
        LatestExporter("latest", serving_input_fn, exports_to_keep=2),
        FinalExporter("final", serving_input_fn),
        BestExporter("best", serving_input_fn, compare_fn=lambda best_eval_result, current_eval_result: False),
    ]
    listener = Listener()
    hook = _Counter()
    spec = hb.estimator.TrainSpec(train_input_fn, max_steps=6, hooks=[hook], saving_listeners=[listener])
    throttled = hb.estimator.EvalSpec(eval_input_fn, steps=2, name="held_out", throttle_secs=3600, exporters=exporters)
    values, exports = hb.estimator.train_and_evaluate(model, spec, throttled)
    # At step 6 already.
    again = hb.estimator.train_and_evaluate(model, spec, throttled)
    warm = hb.estimator.Estimator(
        model_fn,
        f"{folder}/warm",
        params={"lr": 0.0},
        warm_start_from=hb.estimator.WarmStartSettings(f"{folder}/model", "(table|dense).*"),
        config=config.replace(model_dir=None),
    )
    warm.train(train_input_fn, steps=1)
    try:
        hb.estimator.Estimator(model_fn, warm_start_from=object())
        refused = None
    except ValueError as error:
        refused = str(error)
    names = ["table", "dense/kernel"]
    return {
        "values": values,
        "exports": exports,
        "again": again,
        "steps": hook.steps,
        "saved": listener.saved,
        "warm": [bool((warm.get_variable_value(n) == model.get_variable_value(n)).all()) for n in names],
        "refused": refused,
        "config": {
            "is_chief": config.is_chief,
            "workers": config.num_worker_replicas,
            "id": config.global_id_in_cluster,
            "ps": config.num_ps_replicas,
            "master": config.master,
            "type": config.task_type,
            "seed": model.config.tf_random_seed,
            "model_dir": model.config.model_dir,
        },
        "wrapped": hb.wraps(tf1.estimator.Estimator) is hb.estimator.Estimator if hasattr(tf1, "estimator") else True,
    }


def evaluate_beside(folder):
    """Runs a task 'evaluator' of TF_CONFIG on the checkpoints of `tell`."""
    # The launcher did not start it.
    for name in ("LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE"):
        os.environ.pop(name, None)
    import hybridbackend.tensorflow as hb
    from lockstep.estimator import FinalExporter

    _, eval_input_fn = shares(0, 1)
    model = hb.estimator.Estimator(model_fn, model_dir=f"{folder}/model", params={"lr": 0.1})
    evaluation = hb.estimator.EvalSpec(
        eval_input_fn,
        steps=None,
        name="beside",
        start_delay_secs=0,
        throttle_secs=0,
        exporters=FinalExporter("beside", serving_input_fn),
    )
    train = hb.estimator.TrainSpec(eval_input_fn, max_steps=6)
    return model.config.task_type, *hb.estimator.train_and_evaluate(model, train, evaluation)


def sums(features, labels, mode):
    """Builds a model whose weight falls by `features` in each step."""
    import tensorflow.compat.v1 as tf1

    import hybridbackend.tensorflow as hb

    loss = tf.reduce_sum(tf1.get_variable("w", [], initializer=tf1.zeros_initializer()) * features)
    step = tf1.train.get_global_step()
    train_op = tf1.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
    return hb.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def trained(model, rank):
    """Trains three more steps. Returns the weight, or the error."""
    try:
        model.train(lambda: tf.data.Dataset.from_tensors([rank + 1.0]).repeat(3))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return float(model.get_variable_value("w"))


def beside_horovod(folder):
    """Trains estimators of both kinds in a program that calls `hvd.init()`. Returns the results of each."""
    import horovod.tensorflow as hvd
    import hybridbackend.tensorflow as hb
    from lockstep.estimator import tf1

    rank = hb.context.rank
    own = tf1.Estimator(sums, f"{folder}/{rank}")
    hvd.init()
    done = {"made_before": trained(own, rank)}
    hvd.shutdown()
    done["after_shutdown"] = trained(own, rank)
    hvd.init()
    done["one_folder"] = trained(tf1.Estimator(sums, f"{folder}/one"), rank)
    never = tf1.RunConfig(save_checkpoints_secs=None)
    tf1.Estimator(sums, f"{folder}/one", config=never).train(lambda: tf.data.Dataset.from_tensors([1.0]))
    done["together"] = trained(hb.estimator.Estimator(sums, f"{folder}/together"), rank)
    done["connected"] = trained(own, rank)
    done["wrapped"] = hb.wraps(tf1.Estimator) is hb.estimator.Estimator
    return done


def before_horovod(folder):
    """Calls `hvd.init()` too late for `tf.estimator`. Returns the latter's results before and after it."""
    import horovod.tensorflow as hvd
    from lockstep._src.engine.context import context
    from lockstep.estimator import tf1

    model = tf1.Estimator(sums, f"{folder}/early")
    first = trained(model, context.rank)
    hvd.init()
    return first, trained(model, context.rank)


class _Counter(tf.compat.v1.train.SessionRunHook):
    """A hook that counts steps."""

    def __init__(self):
        self.steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1
