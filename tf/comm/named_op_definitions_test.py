"""Tests of operations that match tensors of the ranks by name, LockstepNamedAllReduce and others, on two workers."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import reported_by_case, run_cases

SIZE = 2
ORACLES = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "product": np.prod}


def call(op, tensors, names=("a", "b"), **more):
    """Runs an operation on a list of tensors, whose names are an attribute."""
    return op(tensors, called=[], names=list(names[: len(tensors)]), **more)


def values_of(rank):
    return np.random.default_rng(rank).integers(1, 9, [5, 2]).astype(np.float32)


EVERYONE = np.stack([values_of(rank) for rank in range(SIZE)])


def own():
    return tf.constant(EVERYONE[context.rank])


def tensors_are_reduced():
    for reduction, oracle in ORACLES.items():
        got, whole = call(ops.lockstep_named_all_reduce, [own(), tf.constant(2)], reduction=reduction)
        np.testing.assert_allclose(got, oracle(EVERYONE, axis=0), rtol=1e-6)
        assert whole == oracle([2, 2])
    (got,) = call(ops.lockstep_named_all_reduce, [own()], prescale="0.5", postscale="3.0")
    np.testing.assert_allclose(got, 1.5 * EVERYONE.sum(0))


def adasum_of_orthogonal_tensors_is_their_sum():
    mine = tf.one_hot(context.rank, 3)
    (got,) = call(ops.lockstep_named_all_reduce, [mine], reduction="adasum")
    np.testing.assert_allclose(got, [1, 1, 0])
    (got,) = call(ops.lockstep_named_all_reduce, [tf.ones([3])], reduction="adasum")
    np.testing.assert_allclose(got, [1, 1, 1])


def reduced_rows_are_divided():
    (got,) = call(ops.lockstep_named_reduce_scatter, [own()])
    np.testing.assert_array_equal(got, np.array_split(EVERYONE.sum(0), SIZE)[context.rank])


def rows_are_gathered():
    (got,) = call(ops.lockstep_named_all_gather, [own()[: 1 + context.rank]])
    np.testing.assert_array_equal(got, np.concatenate([EVERYONE[0, :1], EVERYONE[1, :2]]))


def rows_are_sent():
    splits = [tf.constant([[1, 3], [4, 0]][context.rank])]  # row 4 is dropped
    got = call(ops.lockstep_named_all_to_all, [own()], splits=splits)
    wanted = [[EVERYONE[0, :1], EVERYONE[1, :4]], [EVERYONE[0, 1:4], EVERYONE[1, :0]]][context.rank]
    np.testing.assert_array_equal(got.results[0], np.concatenate(wanted))
    assert got.received[0].numpy().tolist() == [len(rows) for rows in wanted]
    nothing = [tf.zeros([0], tf.int64)]
    got = call(ops.lockstep_named_all_to_all, [own()[:4]], splits=nothing)
    half = slice(2 * context.rank, 2 * context.rank + 2)
    np.testing.assert_array_equal(got.results[0], np.concatenate(EVERYONE[:, half]))


def the_roots_tensors_are_given():
    for root in range(SIZE):
        got, number = call(ops.lockstep_named_broadcast, [own(), tf.constant(context.rank)], root=root)
        np.testing.assert_array_equal(got, EVERYONE[root])
        assert number == root


def names_may_be_an_input_in_any_order():
    order = [["x", "y"], ["y", "x"]][context.rank]
    a, b = ops.lockstep_named_all_reduce(
        [tf.fill([2], float(ord(name))) for name in order], called=[tf.constant(order)], names=["", ""], together=False
    )
    assert [a.numpy()[0], b.numpy()[0]] == [2 * ord(name) for name in order]


def calls_may_be_numbered():
    for i in range(3):
        (got,) = call(ops.lockstep_named_all_reduce, [tf.constant(i)], ["allreduce"], numbered=True)
        assert got == SIZE * i
    ops.lockstep_named_barrier(called=[], names=["barrier"], numbered=True)


def the_place_is_known():
    rank, size = ops.lockstep_named_place()
    assert (rank, size) == (context.rank, SIZE)


def ranks_that_disagree_all_fail():
    rank = context.rank
    for op, mine in (
        (ops.lockstep_named_all_reduce, tf.zeros([2 + rank])),
        (ops.lockstep_named_all_gather, tf.zeros([2, 2 + rank])),
        (ops.lockstep_named_broadcast, tf.zeros([2 + rank])),
        (ops.lockstep_named_reduce_scatter, tf.zeros([2 + rank])),
    ):
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=r"differ in the shape.*: rank 0 has \[.*; rank 1 has \["
        ):
            call(op, [mine])
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="differ in the type: rank 0 has float32; rank 1 has float64"
    ):
        call(ops.lockstep_named_all_reduce, [tf.zeros([2], tf.float64 if rank else tf.float32)])


def wrong_arguments_of_one_rank_fail_on_all():
    last = context.rank == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1: alltoall 'a': a split is -1"):
        call(ops.lockstep_named_all_to_all, [own()], splits=[tf.constant([-1, 1] if last else [1, 1])])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="alltoall 'a': got 3 splits, wanted one for each of 2 ranks"
    ):
        call(ops.lockstep_named_all_to_all, [own()], splits=[tf.constant([1, 1, 1])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="got a scalar"):
        call(ops.lockstep_named_all_gather, [tf.constant(1.0)])
    with pytest.raises(tf.errors.OpError, match="root"):
        call(ops.lockstep_named_broadcast, [own()], root=SIZE)


def wrong_attributes_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 2 names and 0 tensors of them for 1 tensors"):
        ops.lockstep_named_all_reduce([own()], called=[], names=["a", "b"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="got 2 names for 1 tensors"):
        ops.lockstep_named_all_reduce([own()], called=[tf.constant(["a", "b"])], names=[""])
    with pytest.raises(tf.errors.InvalidArgumentError, match="prescale is 'half', wanted a number"):
        call(ops.lockstep_named_all_reduce, [own()], prescale="half")
    with pytest.raises(tf.errors.FailedPreconditionError):
        call(ops.lockstep_named_all_reduce, [own()], process_set=7)


def the_last_rank_to_join_is_known():
    assert int(ops.lockstep_named_join(names=["join"])) in range(SIZE)


CASES = [
    tensors_are_reduced,
    adasum_of_orthogonal_tensors_is_their_sum,
    reduced_rows_are_divided,
    rows_are_gathered,
    rows_are_sent,
    the_roots_tensors_are_given,
    names_may_be_an_input_in_any_order,
    calls_may_be_numbered,
    the_place_is_known,
    ranks_that_disagree_all_fail,
    wrong_arguments_of_one_rank_fail_on_all,
    wrong_attributes_are_refused,
    the_last_rank_to_join_is_known,
]


def all_cases():
    named.open_lane()
    run_cases(CASES, lambda name: named.barrier(name=name))
    named.close_lane()


test_on_two_workers = reported_by_case(all_cases, CASES, SIZE)


def test_shapes_are_known_before_the_run():
    with tf.Graph().as_default():
        rows = tf.zeros([4, 3])
        assert call(ops.lockstep_named_all_reduce, [rows])[0].shape == [4, 3]
        assert call(ops.lockstep_named_broadcast, [rows])[0].shape == [4, 3]
        for op in (ops.lockstep_named_all_gather, ops.lockstep_named_reduce_scatter):
            assert call(op, [rows])[0].shape.as_list() == [None, 3]
        got = call(ops.lockstep_named_all_to_all, [rows], splits=[tf.constant([2, 2])])
        assert got.results[0].shape.as_list() == [None, 3] and got.received[0].shape.as_list() == [None]
