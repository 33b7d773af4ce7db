"""Tests of LockstepRouteStrings on two workers, and of LockstepDistinctStrings, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case

SIZE = 2
WORDS = [b"", b"a", b"b", b"\0", b"a\0", "ü".encode(), b"x" * 1000, b"y"]


def words_of(rank, lookup):
    return np.random.default_rng([3, rank, lookup]).choice(np.array(WORDS, object), [3, 4])


def route(lookups, **more):
    options = {"key_owners": [-2] * len(lookups), "tables": ["a", "b"][: len(lookups)]} | more
    return ops.lockstep_route_strings([tf.constant(words) for words in lookups], options.pop("seen", []), [], **options)


def each_word_is_sent_to_one_owner_with_its_count():
    owned = []
    for lookup in range(2):
        found = route([words_of(context.rank, 0), words_of(context.rank, 1)])
        served, times = found.served[lookup].numpy().tolist(), found.times[lookup].numpy().tolist()
        begin = 0
        for rank, count in enumerate(found.recv_splits[lookup].numpy()):
            pairs = list(zip(served[begin : begin + count], times[begin : begin + count], strict=True))
            asked = words_of(rank, lookup).ravel().tolist()
            assert len(set(pairs)) == len(pairs) and all(asked.count(word) == number for word, number in pairs)
            begin += count
        assert begin == len(served)
        owned.append(set(served))
        distinct = len(set(words_of(context.rank, lookup).ravel().tolist()))
        assert found.send_splits[lookup].numpy().sum() == distinct == found.inverse[lookup].numpy().max() + 1
    # Each word has one owner: together, the ranks serve what they ask for.
    mine = tf.constant([[word in owned[0] for word in WORDS]])
    asked = [any(word in words_of(rank, 0) for rank in range(SIZE)) for word in WORDS]
    np.testing.assert_array_equal(np.sum(ordered.allgather(tf.cast(mine, tf.int32)), axis=0), asked)


def a_rank_may_own_all_words():
    found = route([words_of(context.rank, 0)], key_owners=[1])
    all_words = {word for rank in range(SIZE) for word in words_of(rank, 0).ravel().tolist()}
    assert set(found.served[0].numpy().tolist()) == (all_words if context.rank == 1 else set())


def counts_may_be_given():
    words = np.array([b"a", b"b", b"a"], object)
    found = route([words], key_owners=[0], seen=[tf.constant([2, 5, 3], tf.int64)])
    wanted = [(b"a", 5), (b"b", 5)] * SIZE if context.rank == 0 else []
    assert list(zip(found.served[0].numpy().tolist(), found.times[0].numpy().tolist(), strict=True)) == wanted
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: .*table 'a'"):
        route([words], seen=[tf.ones([3 - context.rank], tf.int64)])


def wrong_owners_and_problems_fail_on_all_ranks():
    words = tf.constant(["a"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="table 'a': its keys are on rank 2; the job has 2 ranks"):
        route([words], key_owners=[2])
    problem = tf.constant("the splits are wrong" if context.rank else "")
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: .*the splits are wrong"):
        ops.lockstep_route_strings([words], [], [problem], key_owners=[-2], tables=["a"])
    with pytest.raises(tf.errors.FailedPreconditionError):
        route([words], key_owners=[context.rank])


CASES = [
    each_word_is_sent_to_one_owner_with_its_count,
    a_rank_may_own_all_words,
    counts_may_be_given,
    wrong_owners_and_problems_fail_on_all_ranks,
]


test_on_two_workers = operations_reported_by_case(CASES, SIZE)


@pytest.mark.parametrize(
    ("key_owners", "message"),
    [
        ([], "got 0 key_owners, wanted 1, one for each lookup of keys"),
        ([-2, -2], "got 2 key_owners, wanted 1, one for each lookup of keys"),
        ([-3], "got the owner -3 of keys, wanted -2, -1 or a rank"),
        ([-1], "table 'a': string keys have no remainder"),
        ([1], "table 'a': its keys are on rank 1; the job has 1 ranks"),
    ],
)
def test_a_route_takes_owners_for_each_lookup(key_owners, message):
    context.ensure_initialized()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        route([tf.constant(["word"])], key_owners=key_owners)


def test_each_lookup_has_a_table():
    context.ensure_initialized()
    with pytest.raises(tf.errors.InvalidArgumentError, match="1 lookups, but 2 tables"):
        route([tf.constant(["word"])], tables=["a", "b"])


def test_duplicates_are_dropped_in_the_order_of_their_first_appearance():
    words = words_of(0, 0)
    distinct, times, inverse = ops.lockstep_distinct_strings(tf.constant(words), table="a")
    wanted = list(dict.fromkeys(words.ravel().tolist()))
    assert distinct.numpy().tolist() == wanted
    assert times.numpy().tolist() == [words.ravel().tolist().count(word) for word in wanted]
    assert inverse.shape == words.shape
    np.testing.assert_array_equal(tf.gather(distinct, inverse), words)


def test_no_strings_have_no_duplicates():
    distinct, times, inverse = ops.lockstep_distinct_strings(tf.zeros([0, 3], tf.string), table="a")
    assert (distinct.shape, times.shape, inverse.shape) == ([0], [0], [0, 3])
