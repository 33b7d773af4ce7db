"""Tests that SOK's lookups and optimizers train as plain TensorFlow does on one process with the batches of all ranks.

One model has a table of each kind, with each combiner, with and without weights. It is trained with each optimizer.
"""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import job, lookups, optimizers, rows, starting
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import make
from lockstep._src.tables.updates.lazy_adam import LazyAdamOptimizer
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
STEPS, EXAMPLES, ROWS, DIM = 20, 6, 23, 4
KINDS = ("distributed", "localized", "dynamic")
TABLES = tuple(itertools.product(KINDS, ("sum", "mean"), (False, True)))
OPTIMIZERS = ("SGD", "Adagrad", "Adam", "Ftrl")
RATE = 0.05


def batch(step, rank):
    """Returns ids and weights of a rank's examples; the second example has no ids."""
    random = np.random.default_rng([step, rank])
    lengths = random.integers(1, 5, EXAMPLES)
    lengths[1] = 0
    ids = random.integers(0, ROWS, lengths.sum())
    return lengths, ids, random.uniform(0.5, 2.0, len(ids)).astype(np.float32)


def start_of(number):
    return np.random.default_rng(number).normal(size=[ROWS, DIM]).astype(np.float32)


def loss_of(number, pooled):
    return tf.reduce_sum(tf.sin(pooled) * (1.0 + 0.1 * number))


def table_of(number, kind):
    """Returns a variable that begins with `start_of(number)`."""
    if kind in ("distributed", "localized"):
        mode = f"localized:{number % job.num_ranks()}" if kind == "localized" else None
        return make(start_of(number), mode=mode, name=f"table{number}")
    # Key k begins with row k; every other table is on one rank.
    options = {"mode": f"localized:{number % job.num_ranks()}", "max_capacity": 1024} if is_hybrid(number) else {}
    var_type = "hybrid" if is_hybrid(number) else "hbm"
    return DynamicVariable(DIM, start_of(number), var_type=var_type, name=f"table{number}", **options)


def is_hybrid(number):
    return TABLES[number][0] == "dynamic" and number % 2 == 1


def optimizer_of(library, name, lazy=False):
    """Returns an optimizer; `lazy` is only for the oracle of a dynamic variable."""
    if library == "tf1":
        if name == "Adam" and lazy:
            return LazyAdamOptimizer(RATE)
        classes = {"SGD": tf1.train.GradientDescentOptimizer, "Ftrl": tf1.train.FtrlOptimizer}
        return (classes.get(name) or getattr(tf1.train, f"{name}Optimizer"))(RATE)
    if library == "legacy":
        import tf_keras

        return getattr(tf_keras.optimizers.legacy, name)(RATE)
    return getattr(tf.keras.optimizers, name)(RATE)


def ragged(lengths, values):
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def train(library, name):
    """Trains with this rank's batches; returns the rows of this rank, by table."""
    tables = [table_of(number, kind) for number, (kind, _, _) in enumerate(TABLES)]
    wrapper = optimizers.wrap(optimizer_of(library, name))
    combiners = [combiner for _, combiner, _ in TABLES]

    def loss_with(lengths, ids, weights):
        found = []
        for weighted in (False, True):
            chosen = [i for i, table in enumerate(TABLES) if table[2] == weighted]
            keys = ragged(lengths, ids)
            # One of the forms of ids in each call.
            keys = [keys if i % 2 else keys.to_sparse() for i in chosen]
            given = [ragged(lengths, weights) if isinstance(k, tf.RaggedTensor) else None for k in keys]
            given = [ragged(lengths, weights).to_sparse() if g is None else g for g in given] if weighted else None
            of_tables = [tables[i] for i in chosen]
            made = lookups.lookup_sparse(of_tables, keys, given, [combiners[i] for i in chosen], False)
            found += zip(chosen, made, strict=True)
        return tf.add_n([loss_of(number, pooled) for number, pooled in found])

    batches = [batch(step, job.rank()) for step in range(STEPS)]
    if library == "tf1":
        fed = [
            tf1.placeholder(tf.int64, [None]),
            tf1.placeholder(tf.int64, [None]),
            tf1.placeholder(tf.float32, [None]),
        ]
        loss = loss_with(*fed)
        train_op = wrapper.apply_gradients(zip(tf1.gradients(loss, tables), tables, strict=True))
        exported = [rows.export(table) for table in tables]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for one in batches:
                session.run(train_op, dict(zip(fed, one, strict=True)))
            return session.run(exported)

    @tf.function(input_signature=[tf.TensorSpec([None], d) for d in (tf.int64, tf.int64, tf.float32)])
    def trained(*one):
        with tf.GradientTape() as tape:
            loss = loss_with(*one)
        wrapper.apply_gradients(zip(tape.gradient(loss, tables), tables, strict=True))

    for one in batches:
        trained(*map(tf.constant, one))
    return [[part.numpy() for part in rows.export(table)] for table in tables]


def train_plainly(library, name, ranks):
    """Trains the tables with the batches of all ranks in plain TensorFlow; returns their rows."""
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = [[tf1.placeholder(d, [None]) for d in (tf.int64, tf.int64, tf.float32)] for _ in range(ranks)]
        tables, train_ops = [], []
        for number, (kind, combiner, weighted) in enumerate(TABLES):
            table = tf1.get_variable(f"table{number}", initializer=start_of(number), use_resource=True)
            losses = []
            for lengths, ids, weights in fed:
                given = ragged(lengths, weights).to_sparse() if weighted else None
                pooled = tf.nn.embedding_lookup_sparse(
                    table, ragged(lengths, ids).to_sparse(), given, combiner=combiner
                )
                losses.append(loss_of(number, pooled))
            optimizer = _oracle(library, name, lazy=kind == "dynamic")
            train_ops.append(optimizer.minimize(tf.add_n(losses), var_list=[table]))
            tables.append(table)
        session.run(tf1.global_variables_initializer())
        for step in range(STEPS):
            feeds = {}
            for rank in range(ranks):
                feeds.update(zip(fed[rank], batch(step, rank), strict=True))
            session.run(train_ops, feeds)
        return session.run(tables)


def train_by_keras(name, ranks):
    """Trains the static tables with the batches of all ranks by plain Keras; returns their rows, by table.

    Its optimizers may change rows without a gradient, too: FTRL makes them zero. Gradients are dense, because Keras 3
    squares each of several slices of a row.
    """
    chosen = [i for i, (kind, _, _) in enumerate(TABLES) if kind != "dynamic"]
    tables, optimizer = [tf.Variable(start_of(i)) for i in chosen], optimizer_of("keras", name)

    def loss_with(batches):
        for number, table in zip(chosen, tables, strict=True):
            _, combiner, weighted = TABLES[number]
            for lengths, ids, weights in batches:
                given = ragged(lengths, weights) if weighted else None
                pooled = tf.nn.embedding_lookup_sparse(table, ragged(lengths, ids), given, combiner=combiner)
                yield loss_of(number, pooled)

    spec = [tuple(tf.TensorSpec([None], d) for d in (tf.int64, tf.int64, tf.float32)) for _ in range(ranks)]

    @tf.function(input_signature=[spec])
    def step(batches):
        with tf.GradientTape() as tape:
            loss = tf.add_n(list(loss_with(batches)))
        grads = [tf.convert_to_tensor(grad) for grad in tape.gradient(loss, tables)]
        optimizer.apply_gradients(zip(grads, tables, strict=True))

    for number in range(STEPS):
        step([tuple(map(tf.constant, batch(number, rank))) for rank in range(ranks)])
    return {number: table.numpy() for number, table in zip(chosen, tables, strict=True)}


def _oracle(library, name, lazy):
    """Returns an optimizer of TensorFlow 1 with the tested one's hyperparameters: Keras' Adam has another epsilon."""
    if name == "Adam":
        cls = LazyAdamOptimizer if lazy else tf1.train.AdamOptimizer
        return cls(RATE) if library == "tf1" else cls(RATE, epsilon=1e-7)
    return optimizer_of("tf1", name)


def trained_rows(library, names):
    """Returns this rank's rows after training, by optimizer and table."""
    starting.init("horovod", use_legacy_optimizer=False)
    results = {}
    for name in names:
        with tf.Graph().as_default() if library == "tf1" else contextlib.nullcontext():
            results[name] = train(library, name)
        for number, (keys, _) in enumerate(results[name]):
            assert set(keys) <= set(rows_of(number)), f"{TABLES[number]}: keys of other ranks"
    return results


def rows_of(number):
    """Returns the ids of this rank's rows."""
    ids = np.arange(ROWS)
    if TABLES[number][0] == "localized" or is_hybrid(number):
        return ids if number % job.num_ranks() == job.rank() else ids[:0]
    return ids[ids % job.num_ranks() == job.rank()]


# Promise (sok.md): tables of all kinds train as in plain TensorFlow on one process, with each optimizer, on 1, 2 and 3
# ranks.
@pytest.mark.parametrize(
    ("workers", "library", "names"),
    [
        pytest.param(2, "keras", OPTIMIZERS[::3], marks=pytest.mark.newest_only),
        (1, "tf1", OPTIMIZERS[1::3]),
        pytest.param(2, "keras", OPTIMIZERS, marks=pytest.mark.long),
        pytest.param(3, "tf1", OPTIMIZERS, marks=pytest.mark.long),
        pytest.param(2, "legacy", OPTIMIZERS, marks=pytest.mark.long),
    ],
)
def test_tables_train_as_in_plain_tensorflow(workers, library, names):
    results = call_workers(trained_rows, workers, library, names, timeout_s=480)
    for name in names:
        expected = dict(enumerate(train_plainly(library, name, workers)))
        if library == "keras":
            expected.update(train_by_keras(name, workers))
        for rank, number in itertools.product(range(workers), range(len(TABLES))):
            keys, values = results[rank][name][number]
            what = f"{library} {name} {TABLES[number]}, rank {rank}"
            np.testing.assert_allclose(values, expected[number][keys], rtol=1e-5, atol=1e-5, err_msg=what)
