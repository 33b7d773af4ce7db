"""Tests that SOK's variables and Horovod's optimizers and tapes in one program give the numbers of one process.

The loss is the mean of this rank's examples, as programs of Horovod write it. Dense gradients are then averaged.
Gradients of tables are sums over the ranks, and are divided by the number of ranks.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep._src.compat.sok import job, lookups, optimizers, rows, starting
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.variables import make
from lockstep.testing import call_workers, reported_by_case, run_cases

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
STEPS, EXAMPLES, IDS, ROWS, DIM, RATE = 4, 5, 3, 10, 2, 0.02
KINDS = ("distributed", "localized:1", "dynamic")
ACCUMULATED = 0.1  # Adagrad's initial value
RANK_0 = hvd.ProcessSet([0])


def batch_of(step, rank):
    """Returns ids [EXAMPLES, IDS] and labels [EXAMPLES] of a rank."""
    random = np.random.default_rng([step, rank])
    return random.integers(0, ROWS, [EXAMPLES, IDS]), random.normal(size=EXAMPLES).astype(np.float32)


def batch_of_all(step):
    parts = [batch_of(step, rank) for rank in range(job.num_ranks())]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def start_of(number):
    return np.random.default_rng(number).normal(size=[ROWS, DIM]).astype(np.float32)


def make_tables():
    tables = [make(start_of(n), mode=kind, name=f"table_{n}") for n, kind in enumerate(KINDS[:2])]
    return [*tables, DynamicVariable(DIM, start_of(2), var_type="hbm", name="table_2")]


def make_weight(cls=tf.Variable):
    # Other ranks begin with other values, until they are broadcast.
    return cls(np.float32([0.5, -1.0]) + hvd.rank(), name="weight")


def errors_of(pooled, weight, labels):
    """Returns the squared error of each example."""
    return (tf.reduce_sum(sum(pooled) * weight, 1) - labels) ** 2


def errors(tables, weight, ids, labels):
    ids = tf.RaggedTensor.from_row_lengths(tf.reshape(ids, [-1]), tf.fill([EXAMPLES], IDS))
    pooled = lookups.lookup_sparse(tables, [ids] * 3, None, ["sum"] * 3, False)
    return errors_of(pooled, weight, labels)


def trained_in_one_process(adagrad):
    """Returns the weight and the tables after the steps with the batches of all ranks, in plain TensorFlow."""
    values = [np.float32([0.5, -1.0]), *map(start_of, range(3))]
    squares = [np.full_like(value, ACCUMULATED) for value in values]
    for step in range(STEPS):
        ids, labels = batch_of_all(step)
        variables = [tf.Variable(value) for value in values]
        with tf.GradientTape() as tape:
            pooled = [tf.reduce_sum(tf.gather(table, ids), 1) for table in variables[1:]]
            loss = tf.reduce_mean(errors_of(pooled, variables[0], labels))
        for value, square, gradient in zip(values, squares, tape.gradient(loss, variables), strict=True):
            gradient = tf.convert_to_tensor(gradient).numpy()
            square += gradient**2
            value -= RATE * gradient / (np.sqrt(square) if adagrad else 1)
    return values


def check(weight, exported, adagrad):
    """Compares the weight, and this rank's rows of each table (keys and values), with a run in one process."""
    expected = trained_in_one_process(adagrad)
    np.testing.assert_allclose(weight, expected[0], rtol=1e-5, atol=1e-5)
    for (keys, values), kind, of_one in zip(exported, KINDS, expected[1:], strict=True):
        np.testing.assert_allclose(values, of_one[keys], rtol=1e-5, atol=1e-5, err_msg=kind)
        owned = np.arange(ROWS) % hvd.size() == hvd.rank()
        if kind == "localized:1":
            owned[:] = hvd.rank() == 1
        np.testing.assert_array_equal(keys, np.arange(ROWS)[owned], err_msg=kind)


# TensorFlow 1: on workers.


def train_graph(make_op, adagrad):
    """Trains a graph; `make_op(optimizer, loss, weight, tables)` returns the operation of a step."""
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.int64, [None, IDS]), tf1.placeholder(tf.float32, [None])
        tables, weight = make_tables(), make_weight()
        loss = tf.reduce_mean(errors(tables, weight, *fed))
        cls = tf1.train.AdagradOptimizer if adagrad else tf1.train.GradientDescentOptimizer
        train_op = make_op(cls, loss, weight, tables)
        begin = hvd.broadcast_global_variables(0)
        exported = [rows.export(table) for table in tables]
        session.run(tf1.global_variables_initializer())
        before = session.run(exported[:2])
        session.run(begin)
        np.testing.assert_array_equal(session.run(weight), [0.5, -1.0])
        for (_, is_now), (_, was) in zip(session.run(exported[:2]), before, strict=True):
            np.testing.assert_array_equal(is_now, was)
        for step in range(STEPS):
            session.run(train_op, dict(zip(fed, batch_of(step, hvd.rank()), strict=True)))
        trained = session.run([weight, exported])
    check(*trained, adagrad)


def one_optimizer_of_tensorflow1_trains_all():
    for adagrad in (False, True):
        train_graph(lambda cls, loss, weight, tables: hvd.DistributedOptimizer(cls(RATE)).minimize(loss), adagrad)


def tables_have_their_own_optimizer_of_tensorflow1():
    def make_op(cls, loss, weight, tables):
        of_weight = hvd.DistributedOptimizer(cls(RATE)).minimize(loss, var_list=[weight])
        scaled = [
            tf.IndexedSlices(g.values / hvd.size(), g.indices, g.dense_shape) for g in tf1.gradients(loss, tables)
        ]
        of_tables = optimizers.wrap(cls(RATE)).apply_gradients(zip(scaled, tables, strict=True))
        return tf.group(of_weight, of_tables)

    for adagrad in (False, True):
        train_graph(make_op, adagrad)


def gradients_from_elsewhere_are_left_to_tables():
    def make_op(cls, loss, weight, tables):
        pairs = zip(tf1.gradients(loss, [weight, *tables]), [weight, *tables], strict=True)
        return hvd.DistributedOptimizer(cls(RATE)).apply_gradients(pairs)

    train_graph(make_op, False)


def slots_of_tables_are_not_broadcast():
    with tf.Graph().as_default(), tf1.Session() as session:
        # As many rows on each rank.
        table, weight = make(start_of(0), name="rows"), make_weight()
        optimizer = tf1.train.AdagradOptimizer(RATE)
        optimizer.apply_gradients([(tf.ones(table.shape), table), (tf.ones([DIM]), weight)])
        slots = [optimizer.get_slot(v, "accumulator") for v in (table, weight)]
        session.run(tf1.global_variables_initializer())
        for slot in slots:
            slot.load(np.full(slot.shape, 1.0 + hvd.rank()), session)
        session.run(hvd.broadcast_global_variables(0))
        of_table, of_weight = session.run(slots)
        assert (of_table == 1 + hvd.rank()).all() and (of_weight == 1).all()


# TensorFlow 2: on workers.


def train_eagerly(make_step, adagrad):
    """Trains in a `tf.function`; `make_step(make_optimizer)` returns a function of (loss, tape, weight, tables)."""
    cls = getattr(tf.keras.optimizers, "Adagrad" if adagrad else "SGD")
    apply = make_step(lambda: cls(RATE))
    tables, weight = make_tables(), make_weight()
    hvd.broadcast_variables([weight, *tables], root_rank=0)

    @tf.function
    def step(ids, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(errors(tables, weight, ids, labels))
        apply(tape, loss, weight, tables)

    for number in range(STEPS):
        step(*map(tf.constant, batch_of(number, hvd.rank())))
    check(weight.numpy(), [[part.numpy() for part in rows.export(table)] for table in tables], adagrad)


def one_tape_gives_the_gradients_of_all():
    def make_step(make_optimizer):
        optimizer = optimizers.wrap(make_optimizer())

        def apply(tape, loss, weight, tables):
            variables = [weight, *tables]
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        return apply

    for adagrad in (False, True):
        train_eagerly(make_step, adagrad)


def one_optimizer_of_keras_trains_all():
    def make_step(make_optimizer):
        # The wrapper's copies for dynamic variables exchange as well.
        optimizer = optimizers.wrap(hvd.DistributedOptimizer(make_optimizer()))

        def apply(tape, loss, weight, tables):
            variables = [weight, *tables]
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        return apply

    for adagrad in (False, True):
        train_eagerly(make_step, adagrad)


def tables_have_their_own_optimizer_of_keras():
    def make_step(make_optimizer):
        of_weight, of_tables = hvd.DistributedOptimizer(make_optimizer()), optimizers.wrap(make_optimizer())

        def apply(tape, loss, weight, tables):
            of_rows, (dense,) = tape.gradient(loss, [tables, [weight]])
            of_weight.apply_gradients([(dense, weight)])
            scaled = [tf.IndexedSlices(g.values / hvd.size(), g.indices, g.dense_shape) for g in of_rows]
            of_tables.apply_gradients(zip(scaled, tables, strict=True))

        return apply

    for adagrad in (False, True):
        train_eagerly(make_step, adagrad)


def gradients(is_eager=True, **options):
    """Returns the gradients of a tape that exchanges, of the weight and of the tables, summed by row."""
    tables, weight = make_tables(), make_weight()
    weight.assign([1.0, 2.0])
    ids, labels = batch_of(0, hvd.rank())

    def compute():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(errors(tables, weight, ids, labels))
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, [weight, *tables])

    found = compute() if is_eager else tf.function(compute)()
    by_key = []
    for gradient, table in zip(found[1:], tables, strict=True):
        assert isinstance(gradient, tf.IndexedSlices)
        dense = np.zeros([ROWS, DIM])
        np.add.at(dense, gradient.indices.numpy(), gradient.values.numpy())
        keys = [part.numpy() for part in rows.export(table)][0]
        # Gradients of static tables are of local rows.
        whole = np.zeros([ROWS, DIM])
        whole[keys] = dense[keys] if isinstance(table, DynamicVariable) else dense[: len(keys)]
        by_key.append(hvd.allreduce(tf.constant(whole), op=hvd.Sum).numpy())
    return found[0].numpy(), by_key


def tables_have_the_reduction_of_dense_variables():
    dense, of_rows = gradients(op=hvd.Sum)
    assert all(one.any() for one in of_rows)
    for is_eager in (True, False):
        averaged = gradients(is_eager)
        np.testing.assert_allclose(averaged[0], dense / hvd.size(), rtol=1e-5)
        for got, summed in zip(averaged[1], of_rows, strict=True):
            np.testing.assert_allclose(got, summed / hvd.size(), rtol=1e-5)
    # Slices of tables stay slices, and the program may keep the sums.
    for options in ({"sparse_as_dense": True, "op": hvd.Sum}, {"scale_local_gradients": False}):
        for got, summed in zip(gradients(**options)[1], of_rows, strict=True):
            np.testing.assert_allclose(got, summed, rtol=1e-5)


def what_tables_cannot_have_is_an_error():
    table = make(start_of(0), name="refused")
    with pytest.raises(NotImplementedError, match="'refused.*covers all ranks' losses; got the reduction 'min'"):
        _gradient(table, op=hvd.Min)
    with pytest.raises(ValueError, match="'refused.*wanted the process set of all ranks"):
        _gradient(table, process_set=RANK_0)
    with pytest.raises(ValueError, match="broadcast_: got table 'refused.*whose rows differ by rank"):
        hvd.broadcast_([table], 0)
    dynamic = make_tables()[2]
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(RATE), backward_passes_per_step=2)
    with pytest.raises(NotImplementedError, match="dynamic table 'table_2.*cannot be summed over several passes"):
        optimizer.apply_gradients([(tf.IndexedSlices([[1.0, 1.0]], [3]), dynamic)])


def _gradient(table, **options):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(lookups.all2all_dense_embedding(table, tf.constant([1, 2])))
    return hvd.DistributedGradientTape(tape, **options).gradient(loss, table)


def a_second_exchange_changes_nothing():
    table, rates = make(start_of(0), name="once"), []
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))

    @tf.function
    def step():
        gradient = _gradient(table)
        optimizer.apply_gradients([(gradient, table)])

    before = table.numpy()
    step()
    rates = (before - table.numpy()).ravel()
    np.testing.assert_allclose(sorted(set(rates.round(5))), [0, 1])


def passes_of_static_tables_are_summed():
    table = make(start_of(0), name="passes")
    options = {"backward_passes_per_step": 2, "sparse_as_dense": True}
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), **options)
    before = table.numpy()
    for passes in range(2):
        np.testing.assert_array_equal(table.numpy(), before)
        with tf.GradientTape() as tape:
            # Both ranks look up row 1 + passes, and only rank 0 looks up row 4.
            ids = tf.constant([1 + passes, 4 if hvd.rank() == 0 else 1 + passes])
            loss = tf.reduce_sum(lookups.all2all_dense_embedding(table, ids))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    changed = hvd.allgather(before[:, :1] - table.numpy()[:, :1]).numpy().ravel()
    rows_of_all = np.concatenate([np.arange(rank, ROWS, hvd.size()) for rank in range(hvd.size())])
    expected = np.zeros(ROWS)
    expected[[1, 2, 4]] = 3 / 2, 3 / 2, 2 / 2
    np.testing.assert_allclose(changed, expected[rows_of_all], rtol=1e-5)


def slots_of_keras_are_not_broadcast():
    table, weight = make(start_of(0), name="slotted"), make_weight()
    optimizer = tf.keras.optimizers.SGD(RATE, momentum=0.9)
    optimizer.apply_gradients([(tf.fill(v.shape, 1.0 + hvd.rank()), v) for v in (table, weight)])
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    hvd.broadcast_variables([v for v in variables if "float" in str(v.dtype)], 0)
    slots = {tuple(v.shape): v.numpy() for v in variables if len(v.shape)}
    assert slots[tuple(table.shape)].min() == pytest.approx(-RATE * (1 + hvd.rank()))
    assert slots[tuple(weight.shape)].min() == pytest.approx(-RATE)


CASES = [
    one_optimizer_of_tensorflow1_trains_all,
    tables_have_their_own_optimizer_of_tensorflow1,
    gradients_from_elsewhere_are_left_to_tables,
    slots_of_tables_are_not_broadcast,
    one_tape_gives_the_gradients_of_all,
    one_optimizer_of_keras_trains_all,
    tables_have_their_own_optimizer_of_keras,
    tables_have_the_reduction_of_dense_variables,
    what_tables_cannot_have_is_an_error,
    a_second_exchange_changes_nothing,
    passes_of_static_tables_are_summed,
    slots_of_keras_are_not_broadcast,
]


def run_without_init():
    starting.init("horovod", use_legacy_optimizer=False)
    assert hvd.is_initialized() and (hvd.rank(), hvd.size()) == (job.rank(), 2)
    one_tape_gives_the_gradients_of_all()


# Promise (sok.md): `sok.init()` by itself starts Horovod's interface.
def test_horovod_is_initialized_by_sok():
    call_workers(run_without_init, 2, timeout_s=100)


def run_all():
    hvd.init(process_sets=[RANK_0])
    starting.init("horovod", use_legacy_optimizer=False)
    run_cases(CASES, lambda name: hvd.barrier())


# Promise (sok.md): Horovod's tapes and optimizers train tables as one process does; broadcasts leave tables unchanged.
test_horovods_optimizers_and_soks_variables_on_two_workers = reported_by_case(run_all, CASES, 2, timeout_s=200)
