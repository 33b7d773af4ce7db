"""Tests of when a lookup exchanges in two stages, and of the attributes of its operations."""

from __future__ import annotations

import pytest
import tensorflow as tf

from lockstep._src.engine import library
from lockstep._src.engine.context import context
from lockstep._src.tables.sharded import lookup_steps


@pytest.mark.parametrize(
    ("workers", "hosts", "chosen", "expected"),
    [
        (8, 2, None, True),
        (12, 3, None, True),
        (4, 2, None, False),  # two workers on a host share too few ids
        (7, 2, None, False),  # one host has three workers
        (8, 1, None, False),
        (4, 4, None, False),
        (4, 2, True, True),
        (3, 2, True, True),
        (8, 1, True, False),  # one worker per host: there is only one stage
        (4, 4, True, False),
        (8, 2, False, False),
    ],
)
def test_workers_of_a_host_look_up_together_where_that_is_cheaper(monkeypatch, workers, hosts, chosen, expected):
    monkeypatch.setattr(library, "size", lambda: workers)
    monkeypatch.setattr(library, "num_hosts", lambda: hosts)
    monkeypatch.setattr(context.options, "use_hierarchical_embedding_lookup", chosen)
    assert lookup_steps._in_two_stages() == expected


@pytest.mark.parametrize(
    ("ids_are", "num_rows", "message"),
    [
        (["rows", "keys"], [4, 0], r"num_rows is \[4, 0\], wanted 1 numbers >= 0"),
        (["rows", "counted_keys"], [], r"num_rows is \[\], wanted 1 numbers >= 0"),
        (["rows", "rows"], [4, -1], r"num_rows is \[4, -1\], wanted 2 numbers >= 0"),
        (["keys"], [], r"N = 2, but 2 tables and 1 ids_are"),
        (["rows", "any"], [4], "any"),
    ],
)
def test_a_route_takes_a_number_of_rows_for_each_lookup_of_rows_and_for_no_other(ids_are, num_rows, message):
    ids = tf.constant([1, 2], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.ops.lockstep_route(
            [ids, ids],
            [],
            [],
            N=2,
            ids_are=ids_are,
            num_rows=num_rows,
            blocks=[1] * len(num_rows),
            first_ranks=[0] * len(num_rows),
            key_owners=[-2] * (len(ids_are) - len(num_rows)),
            tables=["a", "b"],
        )


@pytest.mark.parametrize(
    ("blocks", "first_ranks", "message"),
    [
        ([], [0], "got 0 blocks and 1 first_ranks, wanted 1, one for each 'rows' in ids_are"),
        ([0], [0], "got a block of 0 rows from rank 0 on"),
        ([1], [-1], "got a block of 1 rows from rank -1 on"),
        ([1], [1], "table 'a': its rows begin on rank 1; the job has 1 ranks"),
    ],
)
def test_a_route_takes_a_placement_for_each_lookup_of_rows(blocks, first_ranks, message):
    context.ensure_initialized()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.ops.lockstep_route(
            [tf.constant([1, 2])],
            [],
            [],
            N=1,
            ids_are=["rows"],
            num_rows=[4],
            blocks=blocks,
            first_ranks=first_ranks,
            key_owners=[],
            tables=["a"],
        )


@pytest.mark.parametrize(
    ("key_owners", "message"),
    [
        ([], "got 0 key_owners, wanted 1, one for each lookup of keys"),
        ([-2, -2], "got 2 key_owners, wanted 1, one for each lookup of keys"),
        ([-3], "got the owner -3 of keys, wanted -2, -1 or a rank"),
        ([1], "table 'a': its keys are on rank 1; the job has 1 ranks"),
    ],
)
def test_a_route_takes_owners_for_each_lookup_of_keys(key_owners, message):
    context.ensure_initialized()
    keys = tf.constant([1, 2], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.ops.lockstep_route(
            [keys],
            [],
            [],
            N=1,
            ids_are=["keys"],
            num_rows=[],
            blocks=[],
            first_ranks=[],
            key_owners=key_owners,
            tables=["a"],
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        library.ops.lockstep_route_strings([tf.as_string(keys)], [], [], key_owners=key_owners, tables=["a"])


def test_a_route_of_strings_has_no_remainder():
    context.ensure_initialized()
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 'a': string keys have no remainder"):
        library.ops.lockstep_route_strings([tf.constant(["word"])], [], [], key_owners=[-1], tables=["a"])
