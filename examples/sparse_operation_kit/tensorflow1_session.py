"""Clicks, with a graph and a session of TensorFlow 1.

    horovodrun -np 2 python tensorflow1_session.py
    python -m hybridbackend.run -n 2 python tensorflow1_session.py

The loss is the sum over a process's rows, divided by the rows of the whole batch. So the gradients of SOK's tables,
which are sums over the processes, belong to the mean over the batch. Horovod's optimizer adds up the gradients of the
dense variable as well. Prints the loss every twenty steps, and the rows of each process.
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

import horovod.tensorflow as hvd
import sparse_operation_kit as sok
from click_data import NUMBERS, SEEN, USERS, batches_of, make_clicks

BATCH, DIM, RATE = 256, 8, 0.02
START = np.random.default_rng(5).normal(scale=0.1, size=[USERS, DIM]).astype(np.float32)


def sparse(ids):
    """Returns ids [rows, L] as a SparseTensor, without those below 0."""
    places = tf.where(ids >= 0)
    return tf.SparseTensor(places, tf.gather_nd(ids, places), tf.shape(ids, out_type=tf.int64))


def build():
    """Returns the placeholders, the loss, the operation of a step, and the tables."""
    fed = {
        "user": tf.placeholder(tf.int64, [None]),
        "items": tf.placeholder(tf.int64, [None, SEEN]),
        "numbers": tf.placeholder(tf.float32, [None, NUMBERS]),
        "click": tf.placeholder(tf.float32, [None, 1]),
    }
    # Rows of users begin with the same values in any number of processes; rows of items are 0.1.
    users = sok.Variable(START, name="users")
    items = sok.DynamicVariable(dimension=DIM, initializer="0.1", var_type="hbm", name="items")
    weights = tf.get_variable("weights", [NUMBERS, 1], initializer=tf.zeros_initializer(), use_resource=True)

    ids = [sparse(fed["user"][:, tf.newaxis]), sparse(fed["items"])]
    of_user, of_items = sok.lookup_sparse([users, items], ids, combiners=["sum", "mean"])
    logit = tf.reduce_sum(of_user * of_items, 1, keepdims=True) + tf.matmul(fed["numbers"], weights)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=fed["click"], logits=logit)
    loss = tf.reduce_sum(losses) / BATCH

    sok_variables, others = sok.filter_variables(tf.trainable_variables())
    step = tf.train.get_or_create_global_step()
    of_others = hvd.DistributedOptimizer(tf.train.AdamOptimizer(RATE), op=hvd.Sum)
    of_tables = sok.OptimizerWrapper(tf.train.AdamOptimizer(RATE))
    gradients = tf.gradients(loss, sok_variables)
    train_op = tf.group(
        of_others.minimize(loss, global_step=step, var_list=others),
        of_tables.apply_gradients(zip(gradients, sok_variables, strict=True)),
    )
    return fed, hvd.allreduce(loss, op=hvd.Sum), train_op, [users, items]


def train(options):
    """Trains in a session, and prints losses and rows."""
    fed, loss, train_op, tables = build()
    exported = [sok.export(table) for table in tables]
    # Tables keep their rows: other variables get the values of process 0.
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    columns = make_clicks(options.rows)
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        losses = []
        for _ in range(options.epochs):
            for batch in batches_of(columns, BATCH, hvd.rank(), hvd.size()):
                losses.append(session.run([loss, train_op], {fed[name]: batch[name] for name in fed})[0])
                if len(losses) % 20 == 0 and hvd.rank() == 0:
                    print(f"step {len(losses)}: loss {np.mean(losses[-20:]):.5f}", flush=True)
        (users, _), (items, _) = session.run(exported)
    print(f"rank {hvd.rank()}: has {len(users)} users and {len(items)} items", flush=True)


def main():
    """Reads the options, and trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16384, help="rows of an epoch, of all processes together (16384)")
    options = parser.parse_args()

    hvd.init()
    sok.init()
    with tf.Graph().as_default():
        train(options)


if __name__ == "__main__":
    main()
