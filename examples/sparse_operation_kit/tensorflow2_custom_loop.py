"""Clicks, with a loop of the program's own: tables are dumped into files and loaded, and changed keys are taken out.

    horovodrun -np 2 python tensorflow2_custom_loop.py --folder /tmp/tables

Horovod's tape gives the gradients of all variables. It averages the dense variable's gradients over the processes. A
gradient of SOK's tables is the sum over the processes, at the owner of the row. The tape divides it by their number.
"""

import argparse
import datetime
import tempfile
import time

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
import sparse_operation_kit as sok
from click_data import NUMBERS, USERS, batches_of, make_clicks

BATCH, DIM, RATE = 256, 8, 0.02


class Model:
    """The logit of a click: the product of a user's and the items' vectors, and a weighted sum of the numbers."""

    def __init__(self):
        normal = tf.keras.initializers.RandomNormal(stddev=0.1, seed=3)
        # The users' table is whole on the last process; items are any keys, of which each process has a part.
        last = f"localized:{sok.communication.num_ranks() - 1}"
        self.users = sok.Variable(shape=[USERS, DIM], initializer=normal, mode=last, name="users")
        self.items = sok.DynamicVariable(
            dimension=DIM, initializer=normal, var_type="hybrid", init_capacity=256, max_capacity=1024, name="items"
        )
        self.weights = tf.Variable(tf.zeros([NUMBERS, 1]), name="weights")
        self.tables = [self.users, self.items]
        self.variables = [*self.tables, self.weights]
        self.optimizer = sok.OptimizerWrapper(tf.keras.optimizers.Adam(RATE))

    def loss(self, batch):
        """Returns the mean loss of this process's rows of a batch."""
        user = tf.RaggedTensor.from_tensor(batch["user"][:, tf.newaxis])
        items = tf.RaggedTensor.from_tensor(batch["items"], padding=-1)
        users, items = sok.lookup_sparse(self.tables, [user, items], combiners=["sum", "mean"])
        logit = tf.reduce_sum(users * items, 1, keepdims=True) + batch["numbers"] @ self.weights
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(batch["click"], logit))

    @tf.function
    def train(self, batch):
        """Trains on a batch, and returns the mean loss of all processes."""
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return hvd.allreduce(loss)


def say(text):
    """Prints a line, once for all processes."""
    if hvd.rank() == 0:
        print(text, flush=True)


def train(model, columns, epochs):
    """Trains, prints the mean loss of each epoch, and returns the last one."""
    for epoch in range(epochs):
        batches = batches_of(columns, BATCH, hvd.rank(), hvd.size())
        losses = [model.train(tf.nest.map_structure(tf.constant, batch)).numpy() for batch in batches]
        say(f"epoch {epoch}: loss {np.mean(losses):.5f}")


def evaluate(model, columns, what):
    """Prints the mean loss of a batch, which changes nothing."""
    batch = next(batches_of(columns, len(columns["user"]), hvd.rank(), hvd.size()))
    loss = hvd.allreduce(model.loss(tf.nest.map_structure(tf.constant, batch))).numpy()
    say(f"{what}: loss {loss:.5f}")


def main():
    """Trains, dumps, overwrites and loads tables, and trains on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=16384, help="rows of an epoch, of all processes together (16384)")
    parser.add_argument("--folder", help="of the tables' files, which all processes see; by default a temporary one")
    options = parser.parse_args()

    sok.init()  # calls hvd.init()
    temporary = tempfile.TemporaryDirectory() if hvd.rank() == 0 else None
    folder = options.folder or hvd.broadcast_object(temporary and temporary.name)
    columns, others = make_clicks(options.rows), make_clicks(2048, seed=7)
    model = Model()
    train(model, columns, options.epochs)
    evaluate(model, others, "other clicks, after training")

    sok.dump(folder, model.tables, model.optimizer)
    say("dumped the tables and the optimizer's slots")

    for table in model.tables:
        keys, rows = sok.export(table)  # of this process
        sok.assign(table, keys, tf.zeros_like(rows))
    evaluate(model, others, "other clicks, with rows of zeros")
    sok.load(folder, model.tables, model.optimizer)
    evaluate(model, others, "other clicks, with the loaded rows")

    # Times are noted in whole seconds.
    time.sleep(1.1)
    threshold = datetime.datetime.now(datetime.timezone.utc)
    some = {name: column[:BATCH] for name, column in columns.items()}
    train(model, some, 1)
    (keys,), (rows,) = sok.incremental_model_dump(model.items, threshold)
    say(f"{len(keys)} items were looked up since {threshold:%H:%M:%S}; their rows have the shape {rows.shape}")
    print(f"rank {hvd.rank()}: has {model.users.shape[0]} users and {model.items.size[0].numpy()} items", flush=True)
    hvd.barrier()


if __name__ == "__main__":
    main()
