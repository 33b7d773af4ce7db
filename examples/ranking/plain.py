"""Trains the same model in stock TensorFlow, one process: what the distributed job is compared with.

    python examples/ranking/plain.py --data data/ranking/criteo-generated
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import reader
from models import MODELS, OPTIMIZERS, Features, mean_loss
from schema import EVAL, LABEL, TRAIN, Schema
from settings import Plan, parser

tf1 = tf.compat.v1
EVAL_BATCH = 8192


def placeholders(schema: Schema) -> tuple[Features, dict[str, tf.Tensor]]:
    """Inputs to feed: the model's features, and the placeholder of each of the reader's columns."""
    feeds = {name: tf1.placeholder(tf.float32, [None], name) for name in (LABEL, *schema.numeric)}
    feeds |= {name: tf1.placeholder(tf.int64, [None], name) for name in (*schema.categorical, *schema.lists)}
    features: Features = {name: feeds[name] for name in (*schema.numeric, *schema.categorical)}
    for name in schema.lists:
        splits = f"{name}/splits"
        feeds[splits] = tf1.placeholder(tf.int64, [None], f"{name}_splits")
        features[name] = tf.RaggedTensor.from_row_splits(feeds[name], feeds[splits], validate=False)
    return features, feeds


def feed(feeds: dict[str, tf.Tensor], columns: reader.Columns) -> dict[tf.Tensor, np.ndarray]:
    """The feed dictionary of one batch."""
    return {placeholder: columns[name] for name, placeholder in feeds.items()}


def train(flags: argparse.Namespace) -> dict:
    """Trains and evaluates; returns the held-out AUC, the last loss, samples/s, and the held-out rows' scores."""
    schema = Schema.load(flags.data)
    plan = Plan.of(flags, schema)
    with tf.Graph().as_default(), tf1.Session() as session:
        features, feeds = placeholders(schema)
        logits = MODELS[flags.model](features, schema, flags.embedding_dim)
        loss = mean_loss(logits, feeds[LABEL])
        step = OPTIMIZERS[flags.optimizer](plan.learning_rate).minimize(loss)
        scores = tf.sigmoid(logits)
        session.run(tf1.global_variables_initializer())
        started, done, value = time.perf_counter(), 0, float("nan")
        with tqdm(total=plan.total_steps * plan.batch_size, unit="rows", unit_scale=True, desc="Training") as bar:
            while done < plan.total_steps:
                for columns in reader.batches(flags.data, TRAIN, plan.batch_size, drop_remainder=True):
                    value, _ = session.run([loss, step], feed(feeds, columns))
                    done += 1
                    bar.update(plan.batch_size)
                    bar.set_postfix(loss=f"{value:.4f}", refresh=False)
                    if done == plan.total_steps:
                        break
        seconds = time.perf_counter() - started
        held_out = list(reader.batches(flags.data, EVAL, EVAL_BATCH))
        predicted = np.concatenate([session.run(scores, feed(feeds, columns)) for columns in held_out])
    labels = np.concatenate([columns[LABEL] for columns in held_out])
    return {
        "auc": reader.exact_auc(labels, predicted),
        "loss": float(value),
        "steps": done,
        "samples_per_s": done * plan.batch_size / seconds,
        "scores": predicted,
    }


def main() -> None:
    """Trains as the flags say and prints the result as JSON."""
    result = train(parser(__doc__).parse_args())
    print(json.dumps({name: value for name, value in result.items() if name != "scores"}))


if __name__ == "__main__":
    main()
