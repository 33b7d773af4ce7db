"""Tests of LockstepAgreeOnNext on two workers, against a table of all answers."""

import itertools

import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case

SIZE = 2


def all_ranks_go_on_or_end_together():
    ends = {True: all, False: any}  # whether the first rank that runs out ends the data, or the last
    for drop, decides in ends.items():
        for has_value in itertools.product([True, False], repeat=SIZE):
            for has_next in itertools.product([True, False], repeat=SIZE):
                arguments = has_value[context.rank], has_next[context.rank]
                if decides(has_value):
                    proceed, last = ops.lockstep_agree_on_next(*arguments, drop_remainder=drop)
                    assert proceed and last == (not decides(has_next)), (drop, has_value, has_next)
                    continue
                mine = "still has a" if has_value[context.rank] else "has no"
                with pytest.raises(tf.errors.OutOfRangeError, match=f"rank {context.rank} {mine} batch"):
                    ops.lockstep_agree_on_next(*arguments, drop_remainder=drop)


def ranks_must_end_alike():
    with pytest.raises(tf.errors.FailedPreconditionError):
        ops.lockstep_agree_on_next(True, True, drop_remainder=context.rank == 0)


CASES = [all_ranks_go_on_or_end_together, ranks_must_end_alike]


test_on_two_workers = operations_reported_by_case(CASES, SIZE)


def test_only_scalars_are_taken():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="rank 0"):
        ops.lockstep_agree_on_next(tf.constant([True]), True)
