"""Collectives of dense tensors on two workers, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from horovod.tensorflow import mpi_ops
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

# The tensors of rank 0 and of rank 1.
GIVEN = [np.arange(6, dtype=np.float32).reshape(3, 2) - 2, np.arange(6, dtype=np.float32).reshape(3, 2) ** 2]
REDUCED = {
    mpi_ops.Average: (GIVEN[0] + GIVEN[1]) / 2,
    mpi_ops.Sum: GIVEN[0] + GIVEN[1],
    mpi_ops.Min: np.minimum(*GIVEN),
    mpi_ops.Max: np.maximum(*GIVEN),
    mpi_ops.Product: GIVEN[0] * GIVEN[1],
}


def _reductions():
    rank, given = mpi_ops.rank(), GIVEN[mpi_ops.rank()]
    rows = slice(0, 2) if rank == 0 else slice(2, 3)
    for op, wanted in REDUCED.items():
        np.testing.assert_allclose(mpi_ops._allreduce(given, op=op), wanted)
        first, second = mpi_ops._grouped_allreduce([given, -given], op=mpi_ops.Sum, postscale_factor=0.5)
        np.testing.assert_allclose([first, second], [REDUCED[mpi_ops.Sum] / 2, -REDUCED[mpi_ops.Sum] / 2])
        np.testing.assert_allclose(mpi_ops._reducescatter(given, op=op), wanted[rows])
    (mine,) = mpi_ops._grouped_reducescatter([given], "shares", mpi_ops.Sum, prescale_factor=2.0)
    np.testing.assert_allclose(mine, 2 * REDUCED[mpi_ops.Sum][rows])
    with pytest.raises(ValueError, match="op: got 9"):
        mpi_ops._allreduce(given, op=9)


def _rows():
    rank = mpi_ops.rank()
    given = GIVEN[rank][: 1 + rank]
    gathered = np.concatenate([GIVEN[0][:1], GIVEN[1][:2]])
    np.testing.assert_allclose(mpi_ops.allgather(given), gathered)
    np.testing.assert_allclose(mpi_ops.grouped_allgather([given, -given])[1], -gathered)
    np.testing.assert_allclose(mpi_ops.broadcast(GIVEN[rank], 1), GIVEN[1])
    received, splits = mpi_ops.alltoall(GIVEN[rank], splits=[1, 2])
    parts = [each[:1] if rank == 0 else each[1:] for each in GIVEN]
    np.testing.assert_allclose(received, np.concatenate(parts))
    assert splits.numpy().tolist() == [1 + rank] * 2
    variable = tf.Variable(GIVEN[rank])
    np.testing.assert_allclose(mpi_ops.broadcast_([variable], 0)[0], GIVEN[0])
    np.testing.assert_allclose(variable, GIVEN[0])
    assert mpi_ops.barrier() is None


def _places():
    """Checks answers of operations in a graph, which asks when it runs."""

    @tf.function
    def asked():
        places = [mpi_ops.rank_op(), mpi_ops.size_op(), mpi_ops.local_rank_op(), mpi_ops.local_size_op()]
        return [*places, mpi_ops.process_set_included_op(), mpi_ops.process_set_included_op(7)]

    before = [int(each) for each in (mpi_ops.process_set_included_op(), mpi_ops.process_set_included_op(7))]
    mpi_ops.init()
    return before + [int(each) for each in asked()]


def _all_cases():
    places = _places()
    _reductions()
    _rows()
    last = int(mpi_ops.join())
    mpi_ops.shutdown()
    return places, last in (0, 1)


def test_collectives_and_places_on_two_workers():
    outcomes = call_workers(_all_cases, 2, timeout_s=60)
    assert outcomes == [([-1, -1, rank, 2, rank, 2, 1, -3], True) for rank in range(2)]
