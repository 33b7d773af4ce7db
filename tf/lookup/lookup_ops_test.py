"""Tests of the steps of a lookup on two workers: LockstepRoute, LockstepCombine and LockstepCombineGradient.

Also of LockstepDistinct and LockstepCheckIds, which exchange nothing. The oracle is numpy on the whole table.
"""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case

SIZE, ROWS, DIM, BLOCK = 2, 11, 3, 2
TABLE = np.random.default_rng(1).integers(-9, 9, [ROWS, DIM]).astype(np.float32)
# Rows are dealt in blocks from rank 1 on; keys are dealt by their remainder.
PLACED = {"num_rows": [ROWS], "blocks": [BLOCK], "first_ranks": [1], "key_owners": [-1], "tables": ["a", "b"]}


def owners(ids):
    return (ids // BLOCK + 1) % SIZE


def ids_of(rank):
    """Returns a rank's row numbers, [4, 2], and keys, [5]."""
    random = np.random.default_rng([7, rank])
    return random.integers(0, ROWS, [4, 2]), random.integers(-4, 4, [5])


def of_key(keys):
    """Returns the row of each key, as of a dynamic table."""
    return np.stack([keys, keys * 10], axis=-1).astype(np.float32)


def route(keys_are="keys"):
    ids, keys = ids_of(context.rank)
    return ops.lockstep_route(
        [tf.constant(ids, tf.int32), tf.constant(keys)], [], [], N=2, ids_are=["rows", keys_are], **PLACED
    )


def served_ids(local_rows):
    """Returns the ids of this rank's rows."""
    return np.flatnonzero(owners(np.arange(ROWS)) == context.rank)[local_rows]


def each_id_is_sent_to_its_owner_once():
    found = route()
    for lookup, owner in ((0, owners), (1, lambda keys: keys % SIZE)):
        asked = [np.unique(ids_of(rank)[lookup]) for rank in range(SIZE)]
        mine = [ids[owner(ids) == context.rank] for ids in asked]
        served = served_ids(found.local_rows[0].numpy()) if lookup == 0 else found.local_rows[1].numpy()
        np.testing.assert_array_equal(found.recv_splits[lookup], [len(ids) for ids in mine])
        parts = np.split(served, np.cumsum(found.recv_splits[lookup])[:-1])
        for part, wanted in zip(parts, mine, strict=True):
            assert sorted(part.tolist()) == wanted.tolist()
        own = asked[context.rank]
        np.testing.assert_array_equal(found.send_splits[lookup], np.bincount(owner(own), minlength=SIZE))
        assert found.inverse[lookup].shape == ids_of(context.rank)[lookup].shape


def counted_keys_are_sent_with_their_counts():
    served = route("counted_keys")
    begin = 0
    for rank, count in enumerate(served.recv_splits[1].numpy()):
        keys, times = np.unique(ids_of(rank)[1], return_counts=True)
        wanted = {(key, number) for key, number in zip(keys, times, strict=True) if key % SIZE == context.rank}
        assert {tuple(pair) for pair in served.local_rows[1].numpy()[begin : begin + count]} == wanted
        begin += count


def rows_come_back_to_each_id():
    found = route()
    rows = [tf.constant(TABLE[served_ids(found.local_rows[0].numpy())]), of_key(found.local_rows[1].numpy())]
    places = found.inverse, found.send_splits, found.recv_splits
    ids, keys = ids_of(context.rank)
    of_ids, of_distinct = ops.lockstep_combine(
        rows, *places, rows_of=["ids", "distinct_ids"], gradients=["option", "sum"]
    )
    np.testing.assert_array_equal(of_ids, TABLE[ids])
    assert of_distinct.shape == [len(set(keys)), 2]
    np.testing.assert_array_equal(tf.gather(of_distinct, found.inverse[1]), of_key(keys))


def gradients_are_summed_at_the_owner():
    found = route()
    places = found.inverse, found.send_splits, found.recv_splits
    given = [np.random.default_rng([5, rank]).integers(-8, 8, [4, 2, DIM]) for rank in range(SIZE)]
    dense = np.zeros([ROWS, DIM])
    for rank in range(SIZE):
        np.add.at(dense, ids_of(rank)[0], given[rank])
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
        mine = tf.cast(given[context.rank], dtype)
        stack = tf.stack([tf.zeros_like(mine), mine], axis=1)
        # The gradients of distinct keys are ones: their sums count the ranks that asked.
        ones = tf.ones([int(tf.reduce_sum(found.send_splits[1]))], dtype)
        for gradient, slices in ((mine, []), (stack, [1, -1])):
            of_rows, of_keys = ops.lockstep_combine_gradient(
                [gradient, ones], *places, rows_of=["ids", "distinct_ids"], slices=slices
            )
            summed = np.zeros([ROWS, DIM])
            np.add.at(summed, served_ids(found.local_rows[0].numpy()), tf.cast(of_rows, tf.float64))
            own = owners(np.arange(ROWS)) == context.rank
            np.testing.assert_array_equal(summed[own], dense[own], err_msg=f"{dtype.name} {slices}")
            np.testing.assert_array_equal(tf.cast(of_keys, tf.int32), np.ones(found.local_rows[1].shape))


def an_id_out_of_range_fails_on_all_ranks():
    for wrong in (-1, ROWS):
        ids = tf.constant([1, wrong if context.rank else 2])
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"rank 1: .*table 'a': id {wrong} at position 1"):
            ops.lockstep_route(
                [ids],
                [],
                [],
                N=1,
                ids_are=["rows"],
                num_rows=[ROWS],
                blocks=[1],
                first_ranks=[0],
                key_owners=[],
                tables=["a"],
            )


def a_problem_of_an_earlier_step_fails_on_all_ranks():
    problem = tf.constant("the splits are wrong" if context.rank else "")
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: .*the splits are wrong"):
        ops.lockstep_route(
            [tf.constant([1])],
            [],
            [problem],
            N=1,
            ids_are=["keys"],
            num_rows=[],
            blocks=[],
            first_ranks=[],
            key_owners=[-2],
            tables=["a"],
        )


def values_that_do_not_fit_the_route_fail_on_all_ranks():
    # Each rank has asked itself for one row, and the other rank for one.
    places = [tf.constant([0, 1])], [tf.constant([1, 1], tf.int64)], [tf.constant([1, 1], tf.int64)]
    last = context.rank == 1

    def combine(rows, inverse=places[0], send=places[1]):
        ops.lockstep_combine([rows], inverse, send, places[2], rows_of=["ids"], gradients=["sum"])

    def sum_up(gradient, inverse=places[0], **more):
        ops.lockstep_combine_gradient([gradient], inverse, *places[1:], rows_of=["ids"], **more)

    rows, outside = tf.ones([2, DIM]), [tf.constant([0, 2])]
    for call in (
        lambda: combine(rows[:1] if last else rows),
        lambda: combine(rows, outside if last else places[0]),
        lambda: combine(rows, send=[tf.constant([1, -1], tf.int64)] if last else places[1]),
        lambda: sum_up(rows[:1] if last else rows),
        lambda: sum_up(rows, outside if last else places[0]),
        lambda: sum_up(tf.ones([2, 1, DIM]), slices=[1] if last else [0]),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: "):
            call()
    combine(rows)
    sum_up(rows)


CASES = [
    each_id_is_sent_to_its_owner_once,
    counted_keys_are_sent_with_their_counts,
    rows_come_back_to_each_id,
    gradients_are_summed_at_the_owner,
    an_id_out_of_range_fails_on_all_ranks,
    a_problem_of_an_earlier_step_fails_on_all_ranks,
    values_that_do_not_fit_the_route_fail_on_all_ranks,
]


test_on_two_workers = operations_reported_by_case(CASES, SIZE)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_duplicates_are_dropped_in_the_order_of_their_first_appearance(dtype):
    ids, keys = tf.constant([[5, 2], [5, 0]], dtype), tf.constant([9, -3, 9, 9], dtype)
    distinct, inverse = ops.lockstep_distinct(
        [ids, keys], N=2, ids_are=["rows", "counted_keys"], num_rows=[6], tables=["a", "b"]
    )
    np.testing.assert_array_equal(distinct[0], [5, 2, 0])
    np.testing.assert_array_equal(inverse[0], [[0, 1], [0, 2]])
    np.testing.assert_array_equal(distinct[1], [[9, 3], [-3, 1]])
    np.testing.assert_array_equal(inverse[1], [0, 1, 0, 0])


@pytest.mark.parametrize("ids_are", ["rows", "replicated_rows"])
@pytest.mark.parametrize("wrong", [-1, 6])
def test_ids_out_of_range_are_named(ids_are, wrong):
    ids = tf.constant([[0, 5], [3, wrong]])
    message = rf"table 'a': id {wrong} at position 3 .*\[0, 6\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.lockstep_distinct([ids], N=1, ids_are=[ids_are], num_rows=[6], tables=["a"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.lockstep_check_ids(ids, num_rows=6, table="a")


def test_ids_in_range_are_returned():
    ids = tf.constant([[0, 5], [3, 0]])
    np.testing.assert_array_equal(ops.lockstep_check_ids(ids, num_rows=6, table="a"), ids)
    assert ops.lockstep_check_ids(ids[:0], num_rows=0, table="a").shape == [0, 2]


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        ids, found = tf.zeros([4, 2], tf.int64), tf.zeros([2], tf.int64)
        inverse = tf.zeros([4, 2], tf.int32)
        rows = tf.compat.v1.placeholder(tf.float32, [None, DIM])
        assert ops.lockstep_distinct([ids], N=1, ids_are=["keys"], num_rows=[], tables=["a"]).inverse[0].shape == [4, 2]
        assert ops.lockstep_combine([rows], [inverse], [found], [found], rows_of=["ids"], gradients=["sum"])[
            0
        ].shape == [4, 2, DIM]
        summed = ops.lockstep_combine_gradient([tf.zeros([4, 2, DIM])], [inverse], [found], [found], rows_of=["ids"])
        assert summed[0].shape.as_list() == [None, DIM]


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
        ops.lockstep_route(
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
        ops.lockstep_route(
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
        ops.lockstep_route(
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
