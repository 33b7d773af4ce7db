"""`lockstep.stats()` against numbers that numpy computes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import lockstep
from lockstep._src.collectives import statistics
from lockstep.testing import call_workers

tf1 = tf.compat.v1
STEPS, BATCH, ROWS, DIM = 4, 64, 50, 8


def ids_of(rank, step):
    return np.random.default_rng([rank, step]).integers(0, ROWS, BATCH)


# On workers.


def collectives_count():
    before = lockstep.stats()
    rank, size = lockstep.rank(), lockstep.size()
    lockstep.allreduce(tf.zeros([1000]), name="sum")
    lockstep.allgather(tf.zeros([rank + 1, 4]), name="gather")
    lockstep.broadcast(tf.zeros([10]), root=0, name="broadcast")
    lockstep.end_step()
    mine = lockstep.stats(before)
    everyone = lockstep.stats(before, all_ranks=True)
    # The result of an earlier call also serves as the start of a period if it is a difference itself.
    later = lockstep.stats(mine)
    return dict(mine), everyone, dict(later), size


def tables_count():
    rank = lockstep.rank()
    with tf.Graph().as_default(), lockstep.scope():
        with lockstep.embedding_scope():
            table = tf1.get_variable("user", [ROWS, DIM])
        ids = tf1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_or_create_global_step())
        with tf1.train.MonitoredTrainingSession() as session:
            before = lockstep.stats()
            for step in range(STEPS):
                session.run(train_op, {ids: ids_of(rank, step)})
    return dict(lockstep.stats(before))


@pytest.mark.workers
def test_collectives_on_two_workers():
    for rank, (mine, everyone, later, size) in enumerate(call_workers(collectives_count, 2)):
        assert size == 2
        assert mine["rank"] == rank
        assert mine["size"] == 2
        assert mine["steps"] == 1
        assert mine["collectives"] == 3
        other_rows = 2 - rank
        assert mine["sent_bytes"] == 4000 + (rank + 1) * 16 + (40 if rank == 0 else 0)
        assert mine["received_bytes"] == 4000 + other_rows * 16 + (0 if rank == 0 else 40)
        assert 0 <= mine["wait_s"] <= mine["exchange_s"] <= mine["seconds"]
        assert len(mine["waited_for_s"]) == 2
        assert mine["waited_for_s"][rank] == 0
        assert mine["waited_for_s"][1 - rank] == pytest.approx(mine["wait_s"])
        assert [one["rank"] for one in everyone] == [0, 1]
        assert everyone[rank]["sent_bytes"] == mine["sent_bytes"]
        # The exchange of the statistics is counted, after them.
        assert later["steps"] == 0
        assert later["collectives"] >= 1


@pytest.mark.workers
def test_tables_on_two_workers():
    results = call_workers(tables_count, 2)
    for rank, mine in enumerate(results):
        ids = [ids_of(rank, step) for step in range(STEPS)]
        user = mine["tables"]["user"]
        distinct = sum(len(np.unique(one)) for one in ids)
        assert (user["lookups"], user["ids"], user["distinct_ids"]) == (STEPS, STEPS * BATCH, distinct)
        assert user["unique_id_ratio"] == mine["unique_id_ratio"] == distinct / (STEPS * BATCH)
        # Rows are placed by id modulo the number of workers; every worker asks once for each distinct id.
        served = sum(np.sum(np.unique(ids_of(peer, step)) % 2 == rank) for peer in (0, 1) for step in range(STEPS))
        assert user["served_rows"] == served
        assert (user["rows"], user["bytes"]) == (ROWS // 2, ROWS // 2 * DIM * 4)
        assert mine["steps"] == STEPS


@pytest.mark.workers
def test_tables_on_one_worker():
    (mine,) = call_workers(tables_count, 1)
    user = mine["tables"]["user"]
    assert (user["lookups"], user["ids"], user["unique_id_ratio"]) == (STEPS, STEPS * BATCH, None)
    assert (user["rows"], user["bytes"]) == (ROWS, ROWS * DIM * 4)
    assert mine["sent_bytes"] == mine["received_bytes"] == 0
    assert mine["steps"] == STEPS


def test_scalars_are_sums_and_means_over_the_workers():
    def worker(rank):
        table = {"rows": 10 + rank, "bytes": 100, "distinct_ids": 3, "compared_ids": 10, "served_rows": 4 + rank}
        return {
            "seconds": 2.0,
            "steps": 4,
            "exchange_s": 1.0 + rank,
            "wait_s": 0.5,
            "waited_for_s": [0.0, 0.4] if rank == 0 else [0.1, 0.0],
            "distinct_ids": 3,
            "compared_ids": 10,
            "received_bytes": 400,
            "tables": {"user": table},
        }

    found = statistics.scalars([worker(0), worker(1)], examples=80)
    assert found == {
        "lockstep/steps_per_second": 2.0,
        "lockstep/examples_per_second": 40.0,
        "lockstep/exchange_seconds_per_step": 0.375,
        "lockstep/wait_seconds_per_step": 0.125,
        "lockstep/unique_id_ratio": 0.3,
        "lockstep/table_rows/user": 21.0,
        "lockstep/table_bytes/user": 200.0,
        "lockstep/table_unique_id_ratio/user": 0.3,
        "lockstep/rank_wait_seconds_per_step/0": 0.125,
        "lockstep/rank_wait_seconds_per_step/1": 0.125,
        "lockstep/rank_waited_for_seconds_per_step/0": 0.025,
        "lockstep/rank_waited_for_seconds_per_step/1": 0.1,
        "lockstep/rank_received_bytes_per_step/0": 100.0,
        "lockstep/rank_received_bytes_per_step/1": 100.0,
        "lockstep/rank_served_rows_per_step/0": 1.0,
        "lockstep/rank_served_rows_per_step/1": 1.25,
    }


def test_since_has_to_be_a_result():
    with pytest.raises(TypeError, match=r"stats: since: got dict, wanted an earlier result of stats\(\)"):
        lockstep.stats({})  # type: ignore[arg-type]
