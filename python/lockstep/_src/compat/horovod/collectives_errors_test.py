"""Errors in collectives of Horovod's API, on one rank or between ranks, reach all ranks."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep._src.compat.horovod.collectives_test import MODES, run
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

DIFFERS, WRONG = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError

# On workers.


def errors_of_values(rank, size):
    """Returns errors of reductions and broadcasts: the class, the message, and the call."""
    last, is_last = size - 1, rank == size - 1
    return [
        (
            DIFFERS,
            r"allreduce 'a0.*shape.*rank.* 0.*\[2\].*rank",
            lambda: hvd.allreduce(np.zeros([3 if is_last else 2]), name="a0"),
        ),
        (
            DIFFERS,
            "allreduce 'a1.*type.*float32.*int32",
            lambda: hvd.allreduce(np.zeros([2], np.int32 if is_last else np.float32), name="a1"),
        ),
        (
            DIFFERS,
            "allreduce 'a2.*reduction.*sum.*max",
            lambda: hvd.allreduce(np.zeros([2]), op=hvd.Max if is_last else hvd.Sum, name="a2"),
        ),
        (
            DIFFERS,
            "allreduce 'a3.*prescale.*1.*0.5",
            lambda: hvd.allreduce(np.zeros([2]), prescale_factor=0.5 if is_last else 1.0, name="a3"),
        ),
        (DIFFERS, "broadcast 'b0.*root", lambda: hvd.broadcast(np.zeros([2]), root_rank=int(is_last), name="b0")),
        (WRONG, f"root(_rank)? is {size}, wanted", lambda: hvd.broadcast(np.zeros([2]), root_rank=size, name="b1")),
        (
            WRONG,
            f"'b2': root is {size}, wanted 0 to {last}" if not is_last else f"root(_rank)? is {size}, wanted",
            lambda: hvd.broadcast(np.zeros([2]), root_rank=size if is_last else 0, name="b2"),
        ),
    ]


def errors_of_rows(rank, size):
    """Returns errors of exchanges of rows."""
    last, is_last = size - 1, rank == size - 1
    return [
        (DIFFERS, r"allgather 'g0.*\[2\].*\[3\]", lambda: hvd.allgather(np.zeros([1, 3 if is_last else 2]), name="g0")),
        (WRONG, "allgather 'g1.*scalar", lambda: hvd.allgather(np.float32(1), name="g1")),
        (WRONG, "reducescatter 'r0.*scalar", lambda: hvd.reducescatter(np.float32(1), name="r0")),
        (WRONG, "alltoall 's0.*scalar", lambda: hvd.alltoall(np.float32(1), name="s0")),
        (
            WRONG,
            f"rank {last}.*alltoall 's1.*split is -1",
            lambda: hvd.alltoall(np.zeros([9]), splits=[-1 if is_last else 1] * size, name="s1"),
        ),
        # Behind one that is too many, too.
        (
            WRONG,
            rf"rank {last}: alltoall 's5.*a split is -1, wanted 0 or more: splits of \[99,-1",
            lambda: hvd.alltoall(np.zeros([9]), splits=[99, *[-1] * (size - 1)] if is_last else [1] * size, name="s5"),
        ),
        (WRONG, "alltoall 's2.*at most the 1 rows", lambda: hvd.alltoall(np.zeros([1]), splits=[1] * size, name="s2")),
        (WRONG, "alltoall 's3.*splits", lambda: hvd.alltoall(np.zeros([9]), splits=[1] * (size + 1), name="s3")),
        (WRONG, "alltoall 's4.*multiple of", lambda: hvd.alltoall(np.zeros([size + 1]), name="s4")),
    ]


def errors_of_groups(rank, size, mode):
    """Returns errors of ranks that call other operations, or groups of other tensors."""
    last, is_last = size - 1, rank == size - 1
    return [
        (
            DIFFERS,
            "'k0.*kind.*allreduce.*allgather",
            lambda: (hvd.allgather if is_last else hvd.allreduce)(np.zeros([2]), name="k0"),
        ),
        # Groups of other types, one of them on each rank.
        (
            DIFFERS,
            "'k2.*type.*float32.*float64",
            lambda: hvd.grouped_allreduce([np.float32([1]), (np.float64 if is_last else np.float32)([1])], name="k2"),
        ),
        (
            DIFFERS,
            "'k3.*type.*float32.*int64",
            lambda: hvd.grouped_allgather([np.float32([1]), (np.int64 if is_last else np.float32)([1])], name="k3"),
        ),
        # Groups of other lengths: any numbers on all ranks.
        *(
            (
                DIFFERS,
                f"'n{short}.*the group: rank.* 0.* ha.* {short}.*; rank {last} has 'n{short}' of 3",
                lambda short=short: hvd.grouped_allreduce(
                    [np.float32([1])] * (3 if is_last else short), name=f"n{short}"
                ),
            )
            for short in (1, 2)
        ),
        (
            DIFFERS,
            "allgather 'allgather.[0-9]*': .*the group: rank.* 0.* ha.* 1 tensor alone; rank .* of 2"
            if mode == "eager"
            else "the group: rank.* 0.* ha.* 1 tensor alone; rank .* of 2",
            lambda: hvd.grouped_allgather(
                [tf.ones([1])] * (2 if is_last else 1), name=None if mode == "eager" else "n"
            ),
        ),
        # Sparse on one rank and dense on another.
        (
            DIFFERS,
            "'k1.*kind.*allreduce.*allgather",
            lambda: hvd.allreduce(
                tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([0]), tf.constant([3, 2]))
                if is_last
                else tf.zeros([3, 2]),
                name="k1",
            ),
        ),
    ]


def errors(mode):
    """Checks that errors reach all ranks with the tensor, the ranks and both values, and end no process."""
    rank, size = hvd.rank(), hvd.size()
    cases = [*errors_of_values(rank, size), *errors_of_rows(rank, size), *errors_of_groups(rank, size, mode)]
    for error, message, build in cases:
        with pytest.raises(error, match=message):
            run(mode, build)
    # The job continues.
    assert run(mode, lambda: hvd.allreduce(np.float32(1), op=hvd.Sum)) == size


def refused_types():
    """Checks that types that cannot travel are refused by name before any rank waits."""
    text, pair, ragged = tf.constant(["a"]), tf.constant([1j]), tf.ragged.constant([[1], [2, 3]])
    sparse = tf.sparse.from_dense([1, 0])
    for kind in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter"):
        call = functools.partial(getattr(hvd, kind), **({"root_rank": 0} if kind == "broadcast" else {}), name="x")
        for value, got in (
            (text, "a tensor of type string, wanted one of float32, "),
            (pair, "a tensor of type complex128, wanted one of float32, "),
            (ragged, "a RaggedTensor of type int32, wanted a dense tensor; exchange its flat_values and row_splits"),
            (sparse, "a SparseTensor of type int32, wanted a dense tensor; exchange its indices and values"),
        ):
            with pytest.raises(TypeError, match=f"^{kind} 'x': got {got}"):
                call(value)
    with pytest.raises(TypeError, match="^allreduce 'pair.1': got a tensor of type string"):
        hvd.grouped_allreduce([tf.ones([1]), text], name="pair")
    with pytest.raises(TypeError, match="^broadcast 'words:0': got a tensor of type string"):
        hvd.broadcast_variables([tf.Variable(["a"], name="words")], root_rank=0)
    number = tf.Variable(1 + 1j, name="number")
    with tf.GradientTape() as tape:
        size = tf.abs(number)
    tape = hvd.DistributedGradientTape(tape)
    with pytest.raises(TypeError, match="^allreduce '.*': got a tensor of type complex128"):
        tape.gradient(size, [number])


def objects():
    """Errors of objects that are exchanged say what the program called."""
    is_last = hvd.rank() == hvd.size() - 1
    with pytest.raises(tf.errors.FailedPreconditionError) as raised:
        if is_last:
            hvd.allgather_object({}, name="o")
        else:
            hvd.allgather(tf.ones([1]), name="allgather_object o.length")
    if is_last:
        assert raised.value.message.startswith("allgather_object 'o': ")
    with pytest.raises(ValueError, match="^broadcast_object 'p': the ranks name different roots"):
        hvd.broadcast_object({}, root_rank=int(is_last), name="p")


def all_errors():
    hvd.init()
    refused_types()
    objects()
    for mode in MODES if hvd.size() == 2 else MODES[:1]:
        errors(mode)
    hvd.shutdown()


# Promise (horovod.md): an error of one rank reaches all ranks: roots, process sets, objects, variables that are not
# numbers.
# Promise (horovod.md): collectives compute what Horovod's do: reductions, gathers, exchanges, types, sparse tensors,
# compression, gradients, join.
@pytest.mark.parametrize("size", [2, 4])
def test_errors_reach_all_ranks(size):
    """All cases in one job of workers."""
    call_workers(all_errors, size, timeout_s=120)
