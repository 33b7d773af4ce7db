"""Clicks, with a Keras model: a small DLRM (Naumov et al., 2019) whose tables are SOK's.

    horovodrun -np 2 python tensorflow2_keras_dlrm.py

`fit` trains the dense layers by Horovod's optimizer, and the tables by an optimizer of SOK. The loss is the mean of a
process's rows. Horovod averages the gradients of dense layers, and SOK sums the gradients of tables: divided by the
number of processes they are the mean as well. So any number of processes computes what one computes with the whole
batch.

Prints the loss of each epoch, and the area under the ROC curve on other clicks.
"""

import argparse

import numpy as np
import tensorflow as tf

import horovod.tensorflow.keras as hvd
import sparse_operation_kit as sok
from click_data import USERS, batches_of, make_clicks

BATCH, DIM, RATE = 256, 8, 0.5


class Embeddings:
    """The tables: users have a fixed number of rows, which are spread over the processes; items may be any keys.

    It is not a layer: Keras must not take the tables for dense weights.
    """

    def __init__(self):
        small = tf.keras.initializers.RandomUniform(-0.05, 0.05, seed=3)
        self.users = sok.Variable(shape=[USERS, DIM], initializer=small, dtype=tf.float32, name="users")
        self.items = sok.DynamicVariable(DIM, initializer=small, var_type="hbm", name="items")
        self.tables = [self.users, self.items]
        self.optimizer = sok.OptimizerWrapper(tf.keras.optimizers.Adagrad(RATE))

    def look_up(self, user, items):
        """Returns a vector of each table for each row, in one exchange."""
        user = tf.RaggedTensor.from_tensor(user[:, tf.newaxis])
        # -1 marks the end of a row's items.
        items = tf.RaggedTensor.from_tensor(items, padding=-1)
        return sok.lookup_sparse(self.tables, [user, items], combiners=["sum", "mean"])

    def apply_gradients(self, gradients):
        """Updates the rows of this process; the gradients are sums over the processes."""
        mean = [tf.IndexedSlices(g.values / hvd.size(), g.indices, g.dense_shape) for g in gradients]
        self.optimizer.apply_gradients(zip(mean, self.tables, strict=True))


class DLRM(tf.keras.Model):
    """The products of all pairs of vectors, and dense layers below and above."""

    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.bottom = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(DIM, "relu")])
        self.top = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1)])
        self.mean_loss = tf.keras.metrics.Mean("mean_loss")

    def call(self, inputs):
        """Returns the logits of clicks, [rows, 1]."""
        numbers = self.bottom(inputs["numbers"])
        vectors = tf.stack([numbers, *self.embeddings.look_up(inputs["user"], inputs["items"])], axis=1)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        pairs = [products[:, i, j] for i in range(3) for j in range(i)]
        return self.top(tf.concat([numbers, tf.stack(pairs, axis=1)], axis=1))

    def train_step(self, data):
        """Trains on this process's rows of a batch; `fit` calls it."""
        inputs, click = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(click, self(inputs)))
        weights = self.trainable_variables
        of_weights, of_tables = tape.gradient(loss, [weights, self.embeddings.tables])
        self.optimizer.apply_gradients(zip(of_weights, weights, strict=True))
        self.embeddings.apply_gradients(of_tables)
        self.mean_loss.update_state(loss)
        return {"mean_loss": self.mean_loss.result()}


def area_under_curve(score, click):
    """Returns the probability that a row with a click has a higher score than one without."""
    rank = score.argsort().argsort() + 1.0
    positive = click.sum()
    return (rank[click > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(click) - positive))


def dataset_of(columns):
    """Returns batches of this process's rows: inputs and clicks."""
    batches = list(batches_of(columns, BATCH, hvd.rank(), hvd.size()))
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in columns}
    click = stacked.pop("click")
    return tf.data.Dataset.from_tensor_slices((stacked, click))


def main():
    """Trains, and prints losses and the area."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=16384, help="rows of an epoch, of all processes together (16384)")
    options = parser.parse_args()

    hvd.init()
    # One GPU for each process. SOK's tables are on CPUs.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    sok.init()

    tf.keras.utils.set_random_seed(1)
    model = DLRM()
    model.compile(optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adagrad(RATE)))

    def print_loss(epoch, logs):
        # All processes take part in the mean.
        loss = hvd.allreduce(tf.constant(logs["mean_loss"], tf.float32), name="loss").numpy()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.5f}", flush=True)

    callbacks = [
        # Not needed here, because all processes have one seed. Tables keep their rows.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        tf.keras.callbacks.LambdaCallback(on_epoch_end=print_loss),
    ]
    clicks = dataset_of(make_clicks(options.rows))
    model.fit(clicks, epochs=options.epochs, callbacks=callbacks, shuffle=False, verbose=0)

    scores, labels = [], []
    for inputs, click in dataset_of(make_clicks(4096, seed=7)):
        scores.append(hvd.allgather(model(inputs)).numpy())
        labels.append(hvd.allgather(click).numpy())
    area = area_under_curve(np.concatenate(scores).ravel(), np.concatenate(labels).ravel())
    keys, _ = sok.export(model.embeddings.items)
    rows = model.embeddings.users.shape[0]
    print(f"rank {hvd.rank()}: area under the curve {area:.4f}; has {rows} users and {keys.shape[0]} items", flush=True)


if __name__ == "__main__":
    main()
