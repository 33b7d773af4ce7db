"""Arguments of reductions on two workers, against numpy: old and new form of `op`, slices, compression and groups."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

# The tensors of rank 0 and of rank 1.
GIVEN = [np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]], np.float32), np.full([3, 2], 0.5, np.float32)]


def _dense():
    given, total = GIVEN[hvd.rank()], GIVEN[0] + GIVEN[1]
    np.testing.assert_allclose(hvd.allreduce(given), total / 2)
    np.testing.assert_allclose(hvd.allreduce(given, average=False), total)
    np.testing.assert_allclose(hvd.allreduce(given, op=hvd.Sum, prescale_factor=4.0, postscale_factor=0.5), 2 * total)
    np.testing.assert_allclose(hvd.allreduce(given, compression=hvd.Compression.fp16), total / 2)
    np.testing.assert_array_equal(hvd.allreduce(np.array([hvd.rank()])), [0])  # the average of 0 and 1, truncated
    with pytest.raises(ValueError, match="got both op and average"):
        hvd.allreduce(given, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="compression is 'fp16'"):
        hvd.allreduce(given, compression="fp16")
    assert hvd.grouped_allreduce([]) == [] == hvd.grouped_reducescatter([])


def _shares_of_rows():
    given, total = GIVEN[hvd.rank()], GIVEN[0] + GIVEN[1]
    rows = slice(0, 2) if hvd.rank() == 0 else slice(2, 3)
    np.testing.assert_allclose(hvd.reducescatter(given, name="shares"), total[rows] / 2)
    first, second = hvd.grouped_reducescatter([given, -given], op=hvd.Sum, postscale_factor=2.0)
    np.testing.assert_allclose(first, 2 * total[rows])
    np.testing.assert_allclose(second, -2 * total[rows])


def _slices_beside_dense_tensors():
    given, rank = GIVEN[hvd.rank()], hvd.rank()
    slices = tf.IndexedSlices(given[:1], [rank], dense_shape=[2, 2])
    dense, sparse = hvd.grouped_allreduce([given, slices], name="both")
    np.testing.assert_allclose(dense, (GIVEN[0] + GIVEN[1]) / 2)
    np.testing.assert_allclose(sparse.values, np.concatenate([GIVEN[0][:1], GIVEN[1][:1]]) / 2)
    np.testing.assert_array_equal(sparse.indices, [0, 1])
    with pytest.raises(NotImplementedError, match="only hvd.Sum and hvd.Average can reduce"):
        hvd.allreduce(slices, op=hvd.Max)
    with pytest.raises(NotImplementedError, match="prescale_factor"):
        hvd.allreduce(slices, prescale_factor=2.0)


def _all_cases():
    hvd.init()
    _dense()
    _shares_of_rows()
    _slices_beside_dense_tensors()
    hvd.shutdown()


def test_arguments_of_reductions_on_two_workers():
    call_workers(_all_cases, 2, timeout_s=60)
