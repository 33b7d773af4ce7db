"""The models' features, fed from the reader's columns or parsed from serialized `tf.train.Example`s."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import reader
from models import Features
from schema import LABEL, Schema

tf1 = tf.compat.v1


def placeholders(schema: Schema) -> tuple[Features, dict[str, tf.Tensor]]:
    """Returns the model's features, and the placeholder of each of the reader's columns."""
    feeds = {name: tf1.placeholder(tf.float32, [None], name) for name in (LABEL, *schema.numeric)}
    feeds |= {name: tf1.placeholder(tf.int64, [None], name) for name in (*schema.categorical, *schema.lists)}
    features: Features = {name: feeds[name] for name in (*schema.numeric, *schema.categorical)}
    for name in schema.lists:
        splits = f"{name}/splits"
        feeds[splits] = tf1.placeholder(tf.int64, [None], f"{name}_splits")
        features[name] = tf.RaggedTensor.from_row_splits(feeds[name], feeds[splits], validate=False)
    return features, feeds


def feed(feeds: dict[str, tf.Tensor], columns: reader.Columns) -> dict[tf.Tensor, np.ndarray]:
    """Returns the feed dictionary of one batch."""
    return {placeholder: columns[name] for name, placeholder in feeds.items()}


def parse_examples(serialized: tf.Tensor, schema: Schema) -> Features:
    """Returns the model's features from serialized examples [B]."""
    spec: dict = {name: tf.io.FixedLenFeature([], tf.float32) for name in schema.numeric}
    spec |= {name: tf.io.FixedLenFeature([], tf.int64) for name in schema.categorical}
    spec |= {name: tf.io.VarLenFeature(tf.int64) for name in schema.lists}
    return tf.io.parse_example(serialized, spec)


def serialize_examples(columns: reader.Columns, schema: Schema) -> list[bytes]:
    """Returns each row of the columns as a serialized example, without its label."""
    rows = len(columns[LABEL])
    numbers = {name: columns[name].tolist() for name in (*schema.numeric, *schema.categorical, *schema.lists)}
    splits = {name: columns[f"{name}/splits"].tolist() for name in schema.lists}
    serialized = []
    for row in range(rows):
        example = tf.train.Example()
        feature = example.features.feature
        for name in schema.numeric:
            feature[name].float_list.value.append(numbers[name][row])
        for name in schema.categorical:
            feature[name].int64_list.value.append(numbers[name][row])
        for name in schema.lists:
            feature[name].int64_list.value.extend(numbers[name][splits[name][row] : splits[name][row + 1]])
        serialized.append(example.SerializeToString())
    return serialized
