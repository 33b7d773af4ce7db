"""Models with a `train_step` of their own, as TensorFlow Recommenders has them, and arguments of Horovod's programs."""

# Promise of this file (horovod_training.md): `experimental_run_tf_function` is accepted, and a Keras 2 model with a
# `train_step` trains.

import importlib.util
import json
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing import run_workers

HAS_BOTH = importlib.util.find_spec("tf_keras") is not None and importlib.util.find_spec("keras") is not None

PROGRAM = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd
import lockstep

class Retrieval(tf.keras.Model):
  def __init__(self):
    super().__init__()
    self.users = tf.keras.layers.Embedding(8, 2, embeddings_initializer='ones')
  def call(self, ids, training=False):
    return tf.reduce_sum(self.users(ids), -1)
  def train_step(self, ids):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(self(ids, training=True) - tf.cast(ids, tf.float32)))
    gradients = tape.gradient(loss, self.trainable_variables)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
    return {'loss': loss}

hvd.init()
ids = np.arange(16) % 8
model = Retrieval()
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5))
model.compile(optimizer=optimizer, experimental_run_tf_function=False)
model.fit(ids[hvd.rank() * 4:][:4].astype(np.int64), batch_size=4, epochs=2, verbose=0)
print('trained', model.get_weights()[0][:, 0].tolist())
if not hasattr(tf.keras.optimizers.SGD, 'stateless_apply'):  # Keras 2
  try:
    with lockstep.scope():
      Retrieval()(tf.constant([1]))
  except NotImplementedError as error:
    print('refused', error)
"""


def _expected():
    """Returns the first column of the table after two steps with rows 0 to 7: two elements per row, all equal."""
    row = np.ones(8)
    for _ in range(2):
        row -= 0.5 * 2 * (2 * row - np.arange(8)) / 8
    return row


@pytest.mark.parametrize("legacy", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_model_with_a_train_step_trains_by_horovods_interface(legacy, tmp_path):
    if legacy and not HAS_BOTH:
        pytest.skip("there is only one Keras")
    program = tmp_path / "main.py"
    program.write_text(PROGRAM)
    outputs = run_workers(
        2, [sys.executable, str(program)], timeout_s=100, environment={"TF_USE_LEGACY_KERAS": str(int(legacy))}
    )
    is_keras_2 = legacy or not hasattr(tf.keras.optimizers.SGD, "stateless_apply")
    for output in outputs:
        trained = json.loads(re.search("trained (.*)", output)[1])
        np.testing.assert_allclose(trained, _expected(), rtol=1e-5)
        for part in ("refused", "with keras_rs", "hvd.DistributedOptimizer", "TensorFlow Recommenders"):
            assert (part in output) == is_keras_2, output
