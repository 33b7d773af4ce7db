"""Tests of the keys that training looked up since a time."""

from __future__ import annotations

import datetime
import time
import types

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


def test_keys_of_all_ranks_in_their_order():
    first, second = call_workers(_train_and_ask, 2, timeout_s=60)
    assert first == second


def test_error_of_one_rank_is_raised_on_all():
    call_workers(_fail_on_one_rank, 2, timeout_s=60)


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
