"""Tests with random programs: grouped lookups give exactly the results of ungrouped ones, in few exchanges.

Tests of pooled lookups draw their programs here, too (`tables/pooling/random_test.py`).

A program is drawn from a seed: 1 to 40 static and dynamic tables, and lookups in them. Its graph resembles a model's:
all lookups feed one loss. So the exchanges of a step are known. There is one of ids and one of rows for each step of
lookups that depend on each other, one of gradients, and one more of each for lookups in branches.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from lockstep._src.collectives.collectives_order_test import chain_of
from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.dynamic import get_embedding_variable, is_dynamic
from lockstep._src.tables.sharded import ShardingRules, sharding_scope
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
BATCH, STEPS, RATE = 12, 3, 0.1
KINDS = ("LockstepRoute", "LockstepCombine", "LockstepCombineGradient")
# Lookups with a combiner, and at last one without. Ids are sparse or, by the name, ragged; in safe ones, some are
# invalid.
MULTI_HOT = (
    *("sum", "mean", "sqrtn", "weighted sum", "weighted mean", "weighted sqrtn"),
    *("ragged sum", "ragged weighted mean", "safe sum", "safe weighted mean", "ragged rows"),
)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: its shape and type, the seed of its initial values, and whether it is dynamic if its type allows it."""

    rows: int
    dim: int
    dtype: str
    seed: int
    dynamic: bool

    @property
    def values(self):
        """Returns the initial values [rows, dim]."""
        values = np.random.default_rng(self.seed).uniform(-1, 1, [self.rows, self.dim])
        return values.astype(tf.as_dtype(self.dtype).as_numpy_dtype)


@dataclasses.dataclass(frozen=True)
class Feature:
    """A lookup in a table."""

    table: int
    ids: str
    kind: str
    behind: int | None  # the feature whose rows give its ids
    in_branch: bool
    seed: int


@dataclasses.dataclass(frozen=True)
class Program:
    """Tables and the features that are looked up in them; a table may have no feature, or several."""

    tables: list[Table]
    features: list[Feature]

    def exchanges(self, run):
        """Returns how many exchanges of each kind a step has."""
        steps = len({self.depth(i) for i, feature in enumerate(self.features) if not feature.in_branch})
        branches = sum(feature.in_branch for feature in self.features)
        one = min(1, branches)
        # In a function, the gradients of conditionals run one after the other, as all operations with a state do.
        return dict(zip(KINDS, [steps + one, steps + one, 1 + (one if run is in_graph else branches)], strict=True))

    def depth(self, number):
        """Returns how many lookups must run one after the other before feature `number`."""
        behind = self.features[number].behind
        return 0 if behind is None else 1 + self.depth(behind)


def program(seed, independent=False, most_tables=40):
    """Returns the program of a seed; with `independent`, all its lookups can share one exchange."""
    random = np.random.default_rng(seed)
    tables = [
        Table(
            rows=int(random.integers(4, 60)),
            dim=int(random.choice([1, 3, 8, 17])),
            dtype=random.choice(["float32", "float32", "float16", "bfloat16", "float64"]),
            seed=int(random.integers(1 << 30)),
            dynamic=bool(random.random() < 0.3),
        )
        for _ in range(random.integers(1, most_tables + 1))
    ]
    features = []
    for number in range(len(tables) + 1):
        # Other features may depend on the first one; the last one shares a table.
        free = independent or number == 0
        features.append(
            Feature(
                table=number % len(tables),
                ids=random.choice(["int32", "int64"]),
                kind=random.choice(["single", "matrix", *MULTI_HOT]),
                behind=int(random.integers(number)) if not free and random.random() < 0.1 else None,
                in_branch=bool(not free and random.random() < 0.1),
                seed=int(random.integers(1 << 30)),
            )
        )
    # Rows of a lookup in a branch cannot be used outside of it.
    features = [
        dataclasses.replace(f, behind=None)
        if f.in_branch or (f.behind is not None and features[f.behind].in_branch)
        else f
        for f in features
    ]
    return Program(tables, features)


def looked_up(table, rows, feature, rank, shift):
    """Returns a worker's lookup, [BATCH, dim] float32; `shift` is added to the ids."""
    random = np.random.default_rng([feature.seed, rank])

    def move(ids):
        return tf.cast((tf.constant(ids, tf.int64) + shift) % rows, feature.ids)

    if feature.kind in ("single", "matrix"):
        shape = [BATCH] if feature.kind == "single" else [BATCH, 2]
        found = tf.nn.embedding_lookup(table, move(random.integers(0, rows, shape)))
        found = tf.cast(found, tf.float32)
        return found if feature.kind == "single" else tf.reduce_sum(found, 1)
    # The last example has ids, because embedding_lookup_sparse omits rows after the last example that has some.
    lengths = random.integers(0 if feature.kind != "ragged rows" else 1, 5, BATCH)
    lengths[-1] = max(1, lengths[-1])
    ids = move(random.integers(0, rows, lengths.sum()))
    if feature.kind.startswith("safe"):
        ids = tf.where(random.random(lengths.sum()) < 0.8, ids, -1)
    ids = tf.RaggedTensor.from_row_splits(ids, np.append(0, np.cumsum(lengths)), validate=False)
    if feature.kind == "ragged rows":
        return tf.reduce_mean(tf.cast(tf.nn.embedding_lookup(table, ids), tf.float32), 1)
    weights = None
    if "weighted" in feature.kind:
        weights = ids.with_values(tf.constant(random.uniform(0.5, 2, lengths.sum()), table.dtype))
    look_up = tf.nn.safe_embedding_lookup_sparse if feature.kind.startswith("safe") else tf.nn.embedding_lookup_sparse
    if not feature.kind.startswith("ragged"):
        ids, weights = ids.to_sparse(), None if weights is None else weights.to_sparse()
    return tf.cast(look_up(table, ids, weights, combiner=feature.kind.split()[-1]), tf.float32)


def loss_of(drawn, tables, taken, rank):
    """Returns the loss of the batch of worker `rank`; `taken` decides whether lookups in branches run."""
    found, towers = [], []
    for feature in drawn.features:
        table, rows = tables[feature.table], drawn.tables[feature.table].rows
        shift = tf.constant(0, tf.int64)
        if feature.behind is not None:
            shift = tf.cast(tf.abs(tf.reduce_sum(found[feature.behind])) * 7, tf.int64)
        look_up = functools.partial(looked_up, table, rows, feature, rank, shift)
        if feature.in_branch:
            zeros = functools.partial(tf.zeros, [BATCH, drawn.tables[feature.table].dim])
            look_up = functools.partial(tf.cond, taken, look_up, zeros)
        found.append(look_up())
        towers.append(tf.reduce_mean(found[-1], 1))
    return tf.reduce_mean(tf.square(tf.add_n(towers) - 1.0))


def variable(name, table):
    """Creates a table of a TensorFlow 1 program."""
    if table.dynamic and table.dtype != "float64":
        uniform = tf1.random_uniform_initializer(-1, 1, seed=table.seed)
        return get_embedding_variable(name, table.dim, value_dtype=tf.as_dtype(table.dtype), initializer=uniform)
    return tf1.get_variable(name, initializer=tf.constant(table.values))


def in_graph(drawn, grouped):
    """Returns losses and tables of a TensorFlow 1 program with Adagrad, and a step's exchanges by kind."""
    with tf.Graph().as_default(), scope(group_lookups=grouped), tf1.Session() as session:
        with embedding_scope():
            tables = [variable(f"table{i}", table) for i, table in enumerate(drawn.tables)]
        taken = tf1.placeholder_with_default(True, [])
        loss = loss_of(drawn, tables, taken, context.rank)
        train_op = tf1.train.AdagradOptimizer(RATE).minimize(loss)
        session.run(tf1.global_variables_initializer())
        exchanges = collections.Counter(kind for _, kind in chain_of(session, [loss, train_op], types=True))
        losses = [session.run([loss, train_op], {taken: step != 1})[0] for step in range(STEPS)]
        held = [table.export()[:2] if is_dynamic(table) else [table.local_value()] for table in tables]
        return losses, session.run(tf.nest.flatten(held)), exchanges


def in_function(drawn, grouped):
    """Returns the same for a TensorFlow 2 program with gradient descent."""
    with sharding_scope(ShardingRules()):
        tables = [tf.Variable(table.values) for table in drawn.tables]

    @tf.function
    def step(taken):
        with tf.GradientTape() as tape:
            loss = loss_of(drawn, tables, taken, context.rank)
        for table, gradient in zip(tables, tape.gradient(loss, tables), strict=True):
            gradient = tf.IndexedSlices(tf.cast(RATE, table.dtype) * gradient.values, gradient.indices)
            table.scatter_sub(gradient)
        return loss

    engine = eager_context.context()
    with context.scope(group_lookups=grouped):
        engine.enable_graph_collection()
        try:
            losses = [step(tf.constant(True)).numpy()]
            graphs = engine.export_run_metadata().partition_graphs
        finally:
            engine.disable_graph_collection()
        losses += [step(tf.constant(number != 1)).numpy() for number in range(1, STEPS)]
    nodes = [node for graph in graphs for node in graph.node]
    return losses, [table.local_value().numpy() for table in tables], collections.Counter(node.op for node in nodes)


def hold(drawn, run, seed):
    """Checks that grouped and ungrouped lookups give the same bits, and that the exchanges are as few as possible."""
    losses_apart, tables_apart, exchanges_apart = run(drawn, grouped=False)
    losses, tables, exchanges = run(drawn, grouped=True)
    what = f"seed {seed}, {run.__name__}, {len(drawn.tables)} tables"
    got = {kind: exchanges[kind] for kind in KINDS}
    assert got == drawn.exchanges(run), f"{what}: {got}"
    apart = [exchanges_apart[kind] for kind in KINDS]
    assert apart == [len(drawn.features)] * 3, f"{what}: {apart}"
    assert np.isfinite(losses).all(), what
    assert np.array(losses).tobytes() == np.array(losses_apart).tobytes(), what
    for i, (table, other) in enumerate(zip(tables, tables_apart, strict=True)):
        assert table.tobytes() == other.tobytes(), f"{what}, table {i}"


def random_programs(seeds, most_tables, seeds_of_functions):
    context.ensure_initialized()
    for seed in seeds:
        hold(program(seed, seed % 2 == 0, most_tables), in_graph, seed)
    for seed in seeds_of_functions:
        hold(program(seed, seed % 2 == 0, 12), in_function, seed)


@pytest.mark.parametrize(
    ("workers", "seeds", "most_tables", "functions"),
    [
        pytest.param(2, (1,), 40, (3,), marks=pytest.mark.newest_only),
        pytest.param(3, (5,), 12, (), marks=pytest.mark.long),
        pytest.param(2, (2, 6, 7), 40, (4,), marks=pytest.mark.long),
        pytest.param(3, (9,), 40, (8,), marks=pytest.mark.long),
    ],
)
def test_grouped_lookups_give_the_bits_of_ungrouped_ones(workers, seeds, most_tables, functions):
    call_workers(random_programs, workers, seeds, most_tables, functions, timeout_s=400)
