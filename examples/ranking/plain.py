"""Trains the same model in one process of stock TensorFlow, for comparison with the distributed job.

python examples/ranking/plain.py --data path/to/ml-100k
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import data
import reader
from inputs import feed, placeholders
from models import MODELS, OPTIMIZERS, mean_loss
from schema import EVAL, LABEL, TRAIN, Schema
from settings import Plan, parser

tf1 = tf.compat.v1
EVAL_BATCH = 8192


def train(flags: argparse.Namespace, folder: Path) -> dict:
    """Trains on a prepared folder and evaluates.

    Returns:
      The held-out AUC, the last step's loss, steps, samples/s, and the held-out rows' scores.
    """
    schema = Schema.load(folder)
    plan = Plan.of(flags, schema)
    with tf.Graph().as_default(), tf1.Session() as session:
        features, feeds = placeholders(schema)
        logits = MODELS[flags.model](features, schema, flags.embedding_dim)
        loss = mean_loss(logits, feeds[LABEL])
        step = OPTIMIZERS[flags.optimizer](plan.learning_rate).minimize(loss)
        scores = tf.sigmoid(logits)
        session.run(tf1.global_variables_initializer())
        started, done, value = time.perf_counter(), 0, float("nan")
        with tqdm(
            total=plan.total_steps * plan.batch_size, unit="rows", unit_scale=True, desc="Training", disable=None
        ) as bar:
            while done < plan.total_steps:
                for columns in reader.batches(folder, TRAIN, plan.batch_size, drop_remainder=True):
                    value, _ = session.run([loss, step], feed(feeds, columns))
                    done += 1
                    bar.update(plan.batch_size)
                    bar.set_postfix(loss=f"{value:.4f}", refresh=False)
                    if done == plan.total_steps:
                        break
        seconds = time.perf_counter() - started
        held_out = list(reader.batches(folder, EVAL, EVAL_BATCH))
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
    """Trains with the given flags and prints the result as JSON."""
    flags = parser(__doc__).parse_args()
    result = train(flags, data.prepare_once(flags.data, data.DEFAULT_OUT))
    print(json.dumps({name: value for name, value in result.items() if name != "scores"}))


if __name__ == "__main__":
    main()
