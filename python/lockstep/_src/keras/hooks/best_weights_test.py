"""`EarlyStopping(restore_best_weights=True)` with dynamic tables, on one worker and on two."""

# Promise of this file (keras.md): `EarlyStopping` restores dynamic tables of the best epoch.

from __future__ import annotations

import gc
import os
import resource
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing.workers import call_workers

if not getattr(tf.keras, "__version__", "2").startswith("3"):
    pytest.skip("the callback is that of Keras 3", allow_module_level=True)

from lockstep._src.keras.dynamic_embedding import DynamicEmbedding  # noqa: E402  it imports Keras 3

pytestmark = pytest.mark.workers

VALUES, BEST, LAST = [3.0, 1.0, 2.0, 2.0, 2.0], 1, 3


class Records(tf.keras.callbacks.Callback):
    """Gives each epoch its value to monitor, and keeps the state after it."""

    def __init__(self):
        super().__init__()
        self.states = []

    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = VALUES[epoch]
        self.states.append(state_of(self.model))


def state_of(model):
    """Returns the rows of dynamic tables by key, of this worker, and the other weights."""
    tables, others = [], []
    for layer in model.layers:
        if isinstance(layer, DynamicEmbedding):
            keys, rows, *_ = layer.table.export()
            tables.append({key: row.tobytes() for key, row in zip(keys.numpy().tolist(), rows.numpy(), strict=True)})
        else:
            others += [np.asarray(weight).tobytes() for weight in layer.weights]
    return tables, others


def model_of():
    keras = tf.keras
    keras.utils.set_random_seed(1)
    ids, words = keras.Input([], dtype="int64", name="ids"), keras.Input([], dtype="string", name="words")
    with embedding_scope():
        shards = keras.layers.Embedding(500, 3)(ids)
    parts = [shards, DynamicEmbedding(4)(ids), DynamicEmbedding(2, key_dtype="string")(words)]
    model = keras.Model([ids, words], keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile("adagrad", "mse")
    return model


def data():
    """Yields batches in which each epoch has keys of its own."""
    epoch = getattr(data, "epoch", -1) + 1
    data.epoch = epoch
    for batch in range(3):
        ids = np.arange(8) + 8 * batch + 30 * epoch + 200 * context.rank
        yield (ids, ids.astype(str)), (ids % 3).astype(np.float32)


def dataset():
    rows = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string)
    return tf.data.Dataset.from_generator(data, output_signature=(rows, tf.TensorSpec([None], tf.float32)))


def stop_early(folder):
    tempfile.tempdir = folder
    with scope():
        model, records = model_of(), Records()
        stopping = tf.keras.callbacks.EarlyStopping("score", mode="min", patience=2, restore_best_weights=True)
        fitting = {"verbose": 0, "shuffle": False}
        model.fit(dataset(), epochs=len(VALUES), callbacks=[records, stopping], **fitting)
        restored = state_of(model)
        kept = os.listdir(folder)
        stopping.best_weights = None
        gc.collect()
        left = [name for name in os.listdir(folder) if str(os.getpid()) in name or context.world_size == 1]
        model.fit(dataset(), epochs=1, callbacks=[records], **fitting)  # training continues
    return records.states, restored, kept, left


def fails_to_copy(folder):
    tempfile.tempdir = folder
    with scope():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        stopping = tf.keras.callbacks.EarlyStopping("score", mode="min", patience=2, restore_best_weights=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, before[1]))
        try:
            model_of().fit(dataset(), epochs=2, verbose=0, callbacks=[Records(), stopping])
        except tf.errors.OpError as error:
            return type(error).__name__, error.message
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return None


@pytest.mark.parametrize("workers", [1, 2])
def test_the_weights_of_the_best_epoch_come_back_with_all_tables(workers, tmp_path):
    for states, restored, kept, left in call_workers(stop_early, workers, str(tmp_path), timeout_s=200):
        assert len(states) == LAST + 2
        assert restored == states[BEST] != states[LAST]
        for best, last in zip(states[BEST][0], states[LAST][0], strict=True):
            assert best and len(best) < len(last)  # keys that came later are gone
        assert kept and not left
        assert states[LAST + 1] != restored


def test_a_copy_that_cannot_be_written_names_the_table_and_what_to_do(tmp_path):
    ((kind, message),) = call_workers(fails_to_copy, 1, str(tmp_path), timeout_s=100)
    assert kind == "ResourceExhaustedError"
    assert message.startswith("table 'dynamic_embedding/embeddings': its copy in " + str(tmp_path))
    assert "File too large. EarlyStopping(restore_best_weights=True)" in message and "TMPDIR" in message
    assert message.endswith("ModelCheckpoint(save_best_only=True)")
