"""Tests with random programs: pooled and plain lookups in several kinds of tables, in any combination.

A program is drawn from a seed (`sharded/grouping_random_test.py`). It is trained with fused lookups, without them, and
in plain TensorFlow on one process with the batches of all workers.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.dynamic import get_embedding_variable
from lockstep._src.tables.sharded import grouping_random_test as random_programs
from lockstep.testing import call_workers

tf1 = tf.compat.v1
STEPS, RATE = 3, 0.1
# The largest difference that rounding may cause, by the type of a table's rows.
TOLERANCES = {"float64": 1e-6, "float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2}
KINDS = ("sharded", "dynamic", "replicated")


def program(seed: int) -> random_programs.Program:
    """Returns the program of a seed. No ids depend on rows, because rounding may turn such an id into another."""
    drawn = random_programs.program(seed, most_tables=12)
    features = [dataclasses.replace(feature, behind=None) for feature in drawn.features]
    return dataclasses.replace(drawn, features=features)


def kind_of(table: random_programs.Table) -> str:
    # Rows of a dynamic table are at most float32, and such a table rounds 16-bit rows in its own way.
    return "dynamic" if table.dynamic and table.dtype == "float32" else ("sharded", "replicated")[table.seed % 2]


def variable(name: str, table: random_programs.Table):
    """Creates a table of a job."""
    if kind_of(table) == "replicated":
        return tf1.get_variable(name, initializer=tf.constant(table.values))
    with embedding_scope():
        if kind_of(table) == "sharded":
            return tf1.get_variable(name, initializer=tf.constant(table.values))
        return get_embedding_variable(name, table.dim, initializer=table.values)


def trained(drawn, make, ranks):
    """Returns the losses of steps with the batches of `ranks`, the rows of all tables, and the operations' types."""
    tables = [make(f"table{i}", table) for i, table in enumerate(drawn.tables)]
    taken = tf1.placeholder_with_default(True, [])
    losses = [random_programs.loss_of(drawn, tables, taken, rank) for rank in ranks]
    loss = tf.add_n(losses) / len(ranks)
    train_op = tf1.train.AdagradOptimizer(RATE).minimize(loss)
    rows = [
        tf.nn.embedding_lookup(table, tf.range(of.rows, dtype=tf.int64))
        for table, of in zip(tables, drawn.tables, strict=True)
    ]
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        history = [session.run([loss, train_op], {taken: step != 1})[0] for step in range(STEPS)]
        graph = session.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        return history, session.run(rows), {node.op for node in nodes}


def compare(seeds) -> None:
    context.ensure_initialized()
    for seed in seeds:
        drawn = program(seed)
        results = []
        for is_fused in (True, False):
            with tf.Graph().as_default(), scope(fused_lookups=is_fused):
                *result, types = trained(drawn, variable, [context.rank])
            assert ("LockstepPool" in types) == is_fused, f"seed {seed}"
            results.append(result)
        with tf.Graph().as_default():
            *result, _ = trained(
                drawn,
                lambda name, table: tf1.get_variable(name, initializer=tf.constant(table.values)),
                range(context.world_size),
            )
            results.append(result)
        (losses, rows), *others = results
        assert np.isfinite(losses).all(), f"seed {seed}"
        for what, (_, other_rows) in zip(("unfused", "plain TensorFlow"), others, strict=True):
            for number, (table, got, wanted) in enumerate(zip(drawn.tables, rows, other_rows, strict=True)):
                # Tables are trained towards one loss, in which rows of 16 bits are rounded.
                most = max(TOLERANCES[one.dtype] for one in drawn.tables)
                np.testing.assert_allclose(
                    np.asarray(got, np.float64),
                    np.asarray(wanted, np.float64),
                    rtol=most,
                    atol=most,
                    err_msg=f"seed {seed}, {what}, table {number}, a {kind_of(table)} table of {table.dtype}",
                )


@pytest.mark.parametrize("seeds", [range(20, 40)])
def test_programs_have_all_kinds_of_tables_and_lookups(seeds):
    kinds = {(kind_of(drawn.tables[f.table]), f.kind) for drawn in map(program, seeds) for f in drawn.features}
    assert {kind for kind, _ in kinds} == set(KINDS)
    assert {lookup for _, lookup in kinds} >= {"single", "matrix", *random_programs.MULTI_HOT}


# The letters are the workers' hosts.
@pytest.mark.workers
@pytest.mark.parametrize(
    ("hosts", "seeds"),
    [
        ("a", range(20, 22)),
        pytest.param("aa", range(26, 28), marks=pytest.mark.newest_only),
        pytest.param("aaa", range(33, 34), marks=pytest.mark.long),
        pytest.param("aabb", range(35, 36), marks=pytest.mark.long),
        pytest.param("aa", range(38, 48), marks=pytest.mark.long),
        pytest.param("aabb", range(48, 52), marks=pytest.mark.long),
    ],
)
def test_fused_lookups_train_as_unfused_ones_and_as_plain_tensorflow(hosts, seeds):
    two_stages = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}
    call_workers(compare, len(hosts), seeds, hosts=hosts, environment=two_stages, timeout_s=400)
