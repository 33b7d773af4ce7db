"""Tests of the keys that training looked up since a time."""

from __future__ import annotations

import contextlib
import datetime
import gc
import time
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.sok import incremental_dump, job
from lockstep._src.compat.sok.dynamic_variable import DynamicVariable
from lockstep._src.compat.sok.incremental_dump import incremental_model_dump
from lockstep.testing import call_workers

UTC = datetime.timezone.utc
NOON = datetime.datetime(2026, 11, 26, 12, 0, 0, 900_000, tzinfo=UTC)
NOON_SECONDS = 1795694400


@pytest.fixture
def thresholds(monkeypatch):
    """Replaces the tables, and returns the arguments with which they were asked."""
    asked = []

    def changed_since(variable, seconds, session):
        asked.append((variable.name, seconds, session))
        return np.array([seconds]), np.full([1, 2], variable.number)

    monkeypatch.setattr(job, "_tool", "single")
    monkeypatch.setattr(incremental_dump.rows, "changed_since", changed_since)
    return asked


def fake(name, number=0, backend_type="hybrid"):
    return types.SimpleNamespace(name=name, number=number, backend_type=backend_type)


def test_threshold_serves_all_variables_or_each_has_its_own(thresholds):
    a, b = fake("a", 1), fake("b", 2)
    keys, values = incremental_model_dump(a, NOON)
    assert len(keys) == len(values) == 1 and keys[0].tolist() == [NOON_SECONDS] and values[0].tolist() == [[1, 1]]
    incremental_model_dump((a, b), [NOON])
    keys, values = incremental_model_dump([a, b], (NOON, NOON + datetime.timedelta(seconds=5)))
    assert [key.tolist() for key in keys] == [[NOON_SECONDS], [NOON_SECONDS + 5]]
    assert [value.tolist() for value in values] == [[[1, 1]], [[2, 2]]]
    assert [seconds - NOON_SECONDS for _, seconds, _ in thresholds] == [0, 0, 0, 0, 5]


def test_times_without_zone_are_local_and_others_exact(thresholds, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        tokyo = datetime.timezone(datetime.timedelta(hours=9))
        for at in (NOON, NOON.astimezone(tokyo), NOON.astimezone(tokyo).replace(tzinfo=None)):
            incremental_model_dump(fake("a"), at)
        # The last whole second before the threshold, also where a float of its seconds would be rounded up.
        far = datetime.datetime(9000, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)
        incremental_model_dump(fake("a"), far)
    finally:
        monkeypatch.undo()
        time.tzset()
    wanted = [NOON_SECONDS] * 3 + [int(far.replace(microsecond=0).timestamp())]
    assert [seconds for _, seconds, _ in thresholds] == wanted


@pytest.mark.parametrize(
    ("variables", "times", "error", "message"),
    [
        ([fake("a"), fake("b", backend_type="hbm")], NOON, TypeError, r"sok_vars\[1\]: got one with var_type='hbm'"),
        (tf.Variable([1.0]), NOON, TypeError, r"sok_vars\[0\]: got <tf.Variable"),
        ([fake("a"), fake("b")], [NOON] * 3, ValueError, "got 3 times, wanted 1 or 2, one for each variable"),
        ([fake("a")], [], ValueError, "got 0 times, wanted 1$"),
        (
            [fake("a"), fake("b")],
            [NOON, NOON_SECONDS],
            TypeError,
            r"time_threshold\[1\]: got 1795694400, wanted a date",
        ),
        (fake("a"), None, TypeError, r"time_threshold\[0\]: got None, wanted a datetime.datetime"),
    ],
)
def test_arguments_are_checked(thresholds, variables, times, error, message):
    with pytest.raises(error, match=message):
        incremental_model_dump(variables, times)
    assert not thresholds


def test_graphs_need_a_session(thresholds):
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="sess: got None in graph mode"):
            incremental_model_dump(fake("a"), NOON)
        with tf.compat.v1.Session() as session:
            incremental_model_dump(fake("a"), NOON, session)
    assert thresholds == [("a", NOON_SECONDS, session)]


@pytest.mark.workers
def test_keys_of_all_ranks_in_their_order():
    first, second = call_workers(_train_and_ask, 2, timeout_s=60)
    assert first == second


@pytest.mark.workers
def test_error_of_one_rank_is_raised_on_all():
    call_workers(_fail_on_one_rank, 2, timeout_s=60)


@pytest.mark.workers
def test_wrong_arguments_of_one_rank_are_an_error_on_all():
    call_workers(_give_wrong_arguments, 2, timeout_s=60)


@pytest.mark.workers
def test_later_calls_add_no_operations_and_work_in_a_finalized_graph():
    keys, later = call_workers(_ask_in_graph, 2, timeout_s=60)
    assert keys == later == [0, 1, 2, 3]


def test_finalized_graph_needs_an_earlier_call(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    with tf.Graph().as_default() as graph:
        table = hybrid("t")
        graph.finalize()
        with tf.compat.v1.Session() as session:
            message = "variable 't': got a session whose graph is finalized.*Call it for the variable once before"
            with pytest.raises(RuntimeError, match=message):
                incremental_model_dump(table, NOON, session)


def test_graph_is_freed_after_its_program(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        table = hybrid("t")
        session.run(tf.compat.v1.global_variables_initializer())
        assert [len(keys) for keys in incremental_model_dump(table, NOON, session)[0]] == [0]
    freed = weakref.ref(graph)
    del graph, session, table
    gc.collect()
    assert freed() is None


def hybrid(name):
    return DynamicVariable(2, initializer="7", name=name, init_capacity=16, max_capacity=16)


# Functions that run on workers.


def _give_wrong_arguments():
    job.set_comm_tool("horovod")
    table = hybrid("t")
    for sok_vars, times, error, message in (
        (3, NOON, TypeError, r"sok_vars\[0\]: got 3"),
        (table, 3, TypeError, r"time_threshold\[0\]: got 3"),
        (table, [], ValueError, "got 0 times, wanted 1"),
        ([table, table], NOON, ValueError, "number of variables: rank 1 got 2, wanted 1, as on rank 0$"),
    ):
        given = (sok_vars, times) if job.rank() == 1 else (table, NOON)
        with pytest.raises(error, match=message):
            incremental_model_dump(*given)
    with contextlib.ExitStack() as stack:
        if job.rank() == 1:
            stack.enter_context(tf.Graph().as_default())
        with pytest.raises(ValueError, match="sess: got None in graph mode"):
            incremental_model_dump(table, NOON)
    assert [len(keys) for keys in incremental_model_dump(table, NOON)[0]] == [0]


def _ask_in_graph():
    """Dumps in sessions of one graph, finalized at last; returns the keys since long ago, of both ranks."""
    job.set_comm_tool("horovod")
    long_ago, later = datetime.datetime(2000, 1, 1), datetime.datetime.now() + datetime.timedelta(seconds=60)
    with tf.Graph().as_default() as graph:
        table, other = hybrid("t"), hybrid("other")
        saver = tf.compat.v1.train.Saver([tf.compat.v1.train.get_or_create_global_step()])
        with tf.GradientTape():
            read = table.sparse_read(tf.constant([job.rank() * 2, job.rank() * 2 + 1], tf.int64))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            incremental_model_dump([table, other], long_ago, session)
            count = len(graph.get_operations())
            incremental_model_dump([table, other], later, session)
        assert len(graph.get_operations()) == count
        with tf.compat.v1.train.SingularMonitoredSession(scaffold=tf.compat.v1.train.Scaffold(saver=saver)) as session:
            assert graph.finalized
            session.run(read)
            keys, values = incremental_model_dump([table, other], [long_ago, long_ago], session)
            np.testing.assert_array_equal(values[0], np.full([4, 2], 7.0))
            assert keys[1].shape == (0,)
            assert not incremental_model_dump(table, later, session)[0][0].size
    return sorted(keys[0].tolist())


def _fail_on_one_rank():
    def changed_since(variable, seconds, session):
        if job.rank() == 1:
            raise RuntimeError("no memory")
        return np.arange(1), np.ones([1, 2])

    job.set_comm_tool("horovod")
    incremental_dump.rows.changed_since = changed_since
    told = "no memory" if job.rank() == 1 else "sok.incremental_model_dump: rank 1 failed: RuntimeError: no memory"
    with pytest.raises(RuntimeError, match=f"^{told}$"):
        incremental_model_dump([fake("a"), fake("b")], NOON)


def _train_and_ask():
    """Looks keys up on this rank at two times, and returns what was dumped since each."""
    job.set_comm_tool("horovod")
    table = DynamicVariable(2, initializer="7", name="t", init_capacity=16, max_capacity=16)
    other = DynamicVariable(2, initializer="5", name="other", mode="localized:1", init_capacity=16, max_capacity=16)

    def look_up(keys):
        with tf.GradientTape():
            if job.rank() == 1:
                other.sparse_read(tf.constant(keys, tf.int64))
            table.sparse_read(tf.constant([key * 2 + job.rank() for key in keys], tf.int64))

    look_up([1, 2])
    time.sleep(1.1)
    threshold = datetime.datetime.now(UTC)
    look_up([9, 2])
    keys, values = incremental_model_dump([table, other], threshold)
    since = [sorted(keys[0][:2]), sorted(keys[0][2:]), sorted(keys[1])]
    assert since == [[4, 18], [5, 19], [2, 9]], keys
    np.testing.assert_array_equal(values[0], np.full([4, 2], 7.0))
    np.testing.assert_array_equal(values[1], np.full([2, 2], 5.0))
    later = datetime.datetime.now() + datetime.timedelta(seconds=60)
    nothing, no_values = incremental_model_dump([table, other], [datetime.datetime(2000, 1, 1), later])
    assert len(nothing[0]) == 6 and nothing[1].shape == (0,) and no_values[1].shape == (0, 2)
    return [key.tolist() for key in keys]
