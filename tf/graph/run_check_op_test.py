"""Tests of LockstepRunCheck on two workers: it compares the collectives that the ranks are going to run."""

import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops
from lockstep.testing import operations_reported_by_case


def ranks_with_the_same_collectives_agree():
    for _ in range(2):  # the second time without an exchange
        ops.lockstep_run_check(operations=["allreduce 'a'", "barrier 'b'"])
    ops.lockstep_run_check(operations=[])


def the_first_difference_is_named_on_every_rank():
    mine = ["allreduce 'a'", f"barrier 'of rank {context.rank}'", "allreduce 'c'"]
    message = r"collective 2 is barrier 'of rank 0' on rank 0; barrier 'of rank 1' on rank 1"
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        ops.lockstep_run_check(operations=mine)


def a_missing_collective_is_named_on_every_rank():
    mine = ["allreduce 'd'", "barrier 'b'"][: 2 - context.rank]
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="collective 2 is missing on rank 1; barrier 'b' on rank 0"
    ):
        ops.lockstep_run_check(operations=mine)


CASES = [
    ranks_with_the_same_collectives_agree,
    the_first_difference_is_named_on_every_rank,
    a_missing_collective_is_named_on_every_rank,
]


test_on_two_workers = operations_reported_by_case(CASES, 2)
