"""Tests that tables of both classes can ask for plain sums of gradients over the workers, with any options."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.graph import row_weights
from lockstep._src.tables import dynamic
from lockstep._src.tables.dynamic import tensorflow1_adapter
from lockstep._src.tables.sharded import RowShardedTable
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

v1 = tf.compat.v1
ROWS, DIM, RATE = 7, 2, 0.5
# A worker's rows of the batch, [its number, 3] ids of which several occur on several workers.
BATCHES = [
    np.array([[1, 2, 2]]),
    np.array([[2, 3, 1], [5, 2, 0], [6, 6, 1]]),
    np.array([[0, 0, 4], [2, 6, 5]]),
]


class SummedDynamic(dynamic.DynamicVariable):
    sums_gradients = True


class SummedRows(RowShardedTable):
    sums_gradients = True


def dynamic_table(cls, name):
    table = cls(name, DIM, initializer=v1.zeros_initializer())
    tensorflow1_adapter.register(table)
    return table


def table_of_rows(cls, name):
    return cls(np.zeros([ROWS, DIM], np.float32), name=name)


TABLES = {
    "dynamic": functools.partial(dynamic_table, dynamic.DynamicVariable),
    "dynamic, summed": functools.partial(dynamic_table, SummedDynamic),
    "rows": functools.partial(table_of_rows, RowShardedTable),
    "rows, summed": functools.partial(table_of_rows, SummedRows),
}


def rows_of_ids(table, ids):
    return tf.nn.embedding_lookup(table, ids)


def rows_of_distinct_ids(table, ids):
    rows, places = table.distinct_rows(tf.reshape(ids, [-1]))
    return tf.gather(rows, places)


LOOKUPS = {"rows of ids": rows_of_ids, "rows of distinct ids": rows_of_distinct_ids}


def train(option):
    """Returns each table after a step whose lookups share their exchanges, and the gradients' exchanges of the step."""
    context.ensure_initialized()
    context.options.update(embedding_gradient=option)
    with tf.Graph().as_default(), v1.Session() as session:
        batch = v1.placeholder(tf.int64, [None, 3])
        # Gradients by the option are weighted by the workers' rows.
        row_weights.note(batch, batch)
        tables = {
            (name, lookup): make(f"{name} {lookup}".replace(" ", "_").replace(",", ""))
            for name, make in TABLES.items()
            for lookup in LOOKUPS
        }
        loss = tf.add_n([tf.reduce_sum(LOOKUPS[lookup](table, batch)) for (_, lookup), table in tables.items()])
        train = v1.train.GradientDescentOptimizer(RATE).minimize(loss, var_list=list(tables.values()))
        with dynamic.evaluating():
            read = {key: tf.nn.embedding_lookup(table, np.arange(ROWS)) for key, table in tables.items()}
        session.run(v1.global_variables_initializer())
        options, metadata = v1.RunOptions(output_partition_graphs=True), v1.RunMetadata()
        session.run(train, {batch: BATCHES[context.rank]}, options, metadata)
        nodes = [node.op for graph in metadata.partition_graphs for node in graph.node]
        return session.run(read), nodes.count("LockstepCombineGradient")


# One host, and two hosts, whose workers exchange inside each host first.
@functools.cache
def on_workers(hosts, option):
    variables = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}
    return call_workers(train, len(hosts), option, environment=variables, hosts=hosts, timeout_s=120)


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("option", ["mean", "sum"])
@pytest.mark.parametrize("hosts", ["aa", "aab"])
def test_gradients_are_summed_if_the_class_says_so_else_as_the_options_say(hosts, option, table, lookup):
    batches = BATCHES[: len(hosts)]
    counts = np.array([np.bincount(batch.ravel(), minlength=ROWS) for batch in batches], np.float64)
    sizes = np.array([len(batch) for batch in batches])
    if not table.endswith("summed"):
        counts *= (sizes * len(hosts) / sizes.sum())[:, np.newaxis]
        counts /= len(hosts) if option == "mean" else 1
    for read, exchanges in on_workers(hosts, option):
        expected = -RATE * counts.sum(0)
        np.testing.assert_allclose(read[table, lookup], np.stack([expected] * DIM, 1), rtol=1e-6)
        assert exchanges == len(set(hosts)), "tables whose gradients differ share an exchange"
