"""Tests that workers hold the keys that a table's placement gives them, and that checkpoints fit any placement."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import scope
from lockstep._src.tables import dynamic
from lockstep.testing import call_workers

v1 = tf.compat.v1
DIM, STEPS, RATE = 2, 3, 0.5
IDS = np.arange(-15, 15)
# The names of the tables, and the placements that they have in a job: each table has another one in the next job.
PLACEMENTS = {
    "a": ("hash", "remainder", "last"),
    "b": ("remainder", "last", "hash"),
    "c": ("last", "hash", "remainder"),
    "words": ("hash", "last", "hash"),
    "others": ("last", "hash", "last"),
}
STRINGS = ("words", "others")
# The hosts of each job's workers, and which of the placements its tables have. A job restores what the one before has
# saved. Workers of two hosts exchange inside each host first.
JOBS = [("aa", 0), ("aab", 1), ("a", 2), ("aa", 2), ("ab", 2)]


def batch(job, step, rank):
    return np.random.default_rng([job, step, rank]).integers(IDS[0], IDS[-1] + 1, 8)


def keys_of(name, ids):
    """Returns ids as keys of a table."""
    return tf.as_string(ids) if name in STRINGS else ids


def make(name, owner):
    return dynamic.get_embedding_variable(
        name,
        DIM,
        key_dtype=tf.string if name in STRINGS else tf.int64,
        initializer=v1.ones_initializer(),
        ev_option=dynamic.EmbeddingVariableOption(
            placement=dynamic.KeyPlacement(context.world_size - 1 if owner == "last" else owner),
            # Keys that are not admitted yet move with the others.
            filter_option=dynamic.CounterFilter(2),
            record_frequency=True,
        ),
    )


def train(folder, job):
    """Restores the tables of the job before, trains and saves.

    Returns:
      This worker's part of each table, before and after; rows that are looked up afterwards; the number of routes.
    """
    context.ensure_initialized()
    with tf.Graph().as_default(), scope(), v1.Session() as session:
        tables = {name: make(name, owners[JOBS[job][1]]) for name, owners in PLACEMENTS.items()}
        fed = v1.placeholder(tf.int64, [None])
        rows = [tf.nn.embedding_lookup(table, keys_of(name, fed)) for name, table in tables.items()]
        step = v1.train.GradientDescentOptimizer(RATE).minimize(tf.add_n([tf.reduce_sum(r) for r in rows]))
        with dynamic.evaluating():
            read = {name: table.sparse_read(keys_of(name, IDS)) for name, table in tables.items()}
        exported = {name: table.export() for name, table in tables.items()}
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        if job > 0:
            saver.restore(session, f"{folder}/job-{job - 1}")
        before = session.run(exported)
        options, metadata = v1.RunOptions(output_partition_graphs=True), v1.RunMetadata()
        for i in range(STEPS):
            session.run(step, {fed: batch(job, i, context.rank)}, options, metadata)
        saver.save(session, f"{folder}/job-{job}", write_meta_graph=False)
        nodes = [node.op for graph in metadata.partition_graphs for node in graph.node]
        return before, *session.run([exported, read]), nodes.count("LockstepRoute")


def check_owners(parts, owner, workers):
    """Checks which worker has which keys; returns the row and the count of each."""
    held = {}
    for rank, part in enumerate(parts):
        keys = [int(key) for key in part.keys]
        if owner == "last":
            assert rank == workers - 1 or not keys
        if owner == "remainder":
            assert all(key % workers == rank for key in keys)
        assert owner == "last" or keys, "a worker without keys"
        assert not held.keys() & set(keys), "a key has two owners"
        held.update(zip(keys, zip(part.values, part.freqs, strict=True), strict=True))
    return held


def check_held(held, rows, seen):
    assert held.keys() == rows.keys()
    for key, (row, frequency) in held.items():
        np.testing.assert_allclose(row, rows[key], rtol=1e-5, atol=1e-6)
        assert frequency == seen[key]


@pytest.mark.workers
def test_keys_are_where_the_placement_says_and_move_with_checkpoints(tmp_path):
    seen, rows = collections.Counter(), {}
    for job, (hosts, which) in enumerate(JOBS):
        workers = len(hosts)
        environment = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}
        results = call_workers(train, workers, str(tmp_path), job, environment=environment, hosts=hosts, timeout_s=120)
        before, after, read, routes = zip(*results, strict=True)
        for name, owners in PLACEMENTS.items() if job else ():
            check_held(check_owners([part[name] for part in before], owners[which], workers), rows, seen)
        for step in range(STEPS):
            times = collections.Counter(int(key) for rank in range(workers) for key in batch(job, step, rank))
            seen.update(times)
            for key, count in times.items():
                if seen[key] >= 2:
                    # The gradient is the mean over the workers of the sums.
                    rows[key] = rows.get(key, 1.0) - RATE * count / workers
        expected = np.array([[rows.get(key, 0.0)] * DIM for key in IDS.tolist()])
        for name, owners in PLACEMENTS.items():
            check_held(check_owners([part[name] for part in after], owners[which], workers), rows, seen)
            for of_worker in read:
                np.testing.assert_allclose(of_worker[name], expected, rtol=1e-5, atol=1e-6)
        stages = 0 if workers == 1 else 2 if len(set(hosts)) < workers and len(set(hosts)) > 1 else 1
        assert set(routes) == {stages}, "tables of different placements share an exchange"


def look_up_on_different_owners():
    context.ensure_initialized()
    option = dynamic.EmbeddingVariableOption(placement=dynamic.KeyPlacement(context.rank))
    table = dynamic.make_table("user", DIM, option=option)
    with pytest.raises(tf.errors.OpError, match="placed"):
        tf.nn.embedding_lookup(table, [1, 2])


@pytest.mark.workers
def test_workers_that_place_a_table_differently_get_an_error():
    call_workers(look_up_on_different_owners, 2)


@pytest.mark.parametrize(
    ("owner", "key_dtype", "message"),
    [
        (1, tf.int64, "table 'user': got a placement on rank 1, wanted one of 1 workers"),
        ("remainder", tf.string, "table 'user': got a placement by remainder for string keys"),
    ],
)
def test_a_placement_that_the_job_or_the_keys_do_not_have_is_refused(owner, key_dtype, message):
    option = dynamic.EmbeddingVariableOption(placement=dynamic.KeyPlacement(owner))
    with pytest.raises(ValueError, match=message):
        dynamic.make_table("user", DIM, key_dtype=key_dtype, option=option)
