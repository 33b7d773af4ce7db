"""Reductions in a simulated job of two ranks, against numpy: what travels, under which names, and what comes of it.

Rank 0 is this process. In the simulated exchanges, rank 1 has three times each tensor that is reduced, and the same
rows.
"""

import re

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import named
from lockstep._src.compat.horovod import collectives, reductions
from lockstep._src.compat.horovod.compression import Compression, Compressor
from lockstep._src.compat.horovod.process_sets import ProcessSet

DENSE = np.array([[1.0, 2.0], [3.0, 1 + 2**-12], [5.0, 7.0]], np.float32)
SUMMED = DENSE + 3 * DENSE


class Pair(ProcessSet):
    """A process set of two ranks without a job."""

    process_set_id = 5

    def size(self):
        return 2


PAIR = Pair([0, 1])


class Exchanges:
    """Replaces exchanges, and records them.

    Attributes:
      seen: what each exchange got: its kind, name, tensors' types, and other arguments.
    """

    def __init__(self):
        self.seen = []

    def reduce(self, kind, tensors, name, op, prescale, postscale, ignore_name_scope, process_set):
        assert process_set is PAIR
        self.seen.append((kind, name, [t.dtype.name for t in tensors], op, prescale, postscale, ignore_name_scope))
        factor = {collectives.SUM: 4, collectives.AVERAGE: 2}[op]
        results = [tensor * factor for tensor in tensors]
        return [result[:2] for result in results] if kind == "reducescatter" else results

    def allgather(self, tensors, name, ignore_name_scope, process_set):
        assert process_set is PAIR
        self.seen.append(("allgather", name, [t.dtype.name for t in tensors], ignore_name_scope))
        return [tf.concat([tensor, tensor], axis=0) for tensor in tensors]


@pytest.fixture(name="exchanges")
def _exchanges(monkeypatch):
    """Returns simulated exchanges, which replace the real ones during the test."""
    exchanges = Exchanges()
    monkeypatch.setattr(collectives, "reduce", exchanges.reduce)
    monkeypatch.setattr(collectives, "allgather", exchanges.allgather)
    monkeypatch.setattr(named, "size_of", lambda group: tf.constant({PAIR.process_set_id: 2}[group]))
    return exchanges


def how(op=collectives.SUM, compression=Compression.none, **arguments):
    return reductions.Reduction(op, compression, PAIR, **arguments)


def rows(values, indices):
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices), dense_shape=tf.constant([9, 2]))


def test_all_arguments_of_dense_tensors_reach_the_exchange(exchanges):
    arguments = {"name": "a", "prescale_factor": 2.0, "postscale_factor": 3.0, "ignore_name_scope": True}
    both = reductions.allreduce([DENSE, DENSE * 2], how(**arguments))
    np.testing.assert_array_equal(both, [SUMMED, 2 * SUMMED])
    (share,) = reductions.reducescatter([DENSE], how(collectives.AVERAGE, **arguments))
    np.testing.assert_array_equal(share, SUMMED[:2] / 2)
    assert exchanges.seen == [
        ("allreduce", "a", ["float32"] * 2, collectives.SUM, 2.0, 3.0, True),
        ("reducescatter", "a", ["float32"], collectives.AVERAGE, 2.0, 3.0, True),
    ]


@pytest.mark.parametrize("reduce", [reductions.allreduce, reductions.reducescatter])
def test_no_tensors_need_no_exchange(exchanges, reduce):
    assert reduce([], how()) == []
    assert exchanges.seen == []


@pytest.mark.parametrize(
    ("compression", "wire"),
    [(Compression.fp16, tf.float16), (Compression.bf16, tf.bfloat16), (Compression.none, tf.float32)],
)
def test_floating_point_tensors_travel_compressed_and_integers_unchanged(exchanges, compression, wire):
    rounded, whole = DENSE.astype(wire.as_numpy_dtype), np.array([8, 6], np.int64)
    results = reductions.allreduce([DENSE, whole], how(compression=compression))
    assert [result.dtype for result in results] == [tf.float32, tf.int64]
    np.testing.assert_array_equal(results[0], 4 * rounded.astype(np.float32))
    np.testing.assert_array_equal(results[1], 4 * whole)
    (share,) = reductions.reducescatter([DENSE], how(compression=compression))
    np.testing.assert_array_equal(share, 4 * rounded.astype(np.float32)[:2])
    (gathered,) = reductions.allreduce([rows(DENSE, [0, 1, 2])], how(compression=compression))
    np.testing.assert_array_equal(gathered.values, np.concatenate([rounded, rounded]).astype(np.float32))
    types = [seen[2] for seen in exchanges.seen]
    assert types == [[wire.name, "int64"], [wire.name], [wire.name], ["int32"]]


def test_what_compression_keeps_of_a_tensor_returns_for_this_tensor(exchanges):
    del exchanges

    class Centered(Compressor):
        """Sends the distance from the first element."""

        @staticmethod
        def compress(tensor):
            return tensor - tensor[0], tensor[0]

        @staticmethod
        def decompress(tensor, ctx):
            return tensor + ctx

    given = [np.array([1.0, 5.0]), np.array([20.0, 2.0])]
    results = reductions.allreduce(given, how(compression=Centered))
    np.testing.assert_array_equal(results, [[1.0, 1.0 + 4 * 4.0], [20.0, 20.0 - 4 * 18.0]])


@pytest.mark.parametrize("is_eager", [True, False])
def test_rows_of_all_ranks_are_gathered_with_their_indices(exchanges, is_eager):
    def reduced():
        given = rows(DENSE, [4, 2, 4])
        (total,) = reductions.allreduce([given], how(name="s"))
        (mean,) = reductions.allreduce([given], how(collectives.AVERAGE, ignore_name_scope=True))
        return total, mean

    total, mean = reduced() if is_eager else tf.function(reduced, autograph=False)()
    for result, divisor in ((total, 1), (mean, 2)):
        np.testing.assert_array_equal(result.values, np.concatenate([DENSE, DENSE]) / divisor)
        np.testing.assert_array_equal(result.indices, [4, 2, 4, 4, 2, 4])
        np.testing.assert_array_equal(result.dense_shape, [9, 2])
    assert exchanges.seen == [
        ("allgather", "s", ["float32"], False),
        ("allgather", "s.indices", ["int32"], False),
        ("allgather", None, ["float32"], True),
        ("allgather", None, ["int32"], True),
    ]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_average_of_integer_rows_is_no_integer(exchanges, dtype):
    del exchanges
    values = np.array([[1, 2]], dtype)
    (mean,) = reductions.allreduce([rows(values, [0])], how(collectives.AVERAGE))
    wanted = np.concatenate([values, values]) / 2
    assert mean.values.dtype == wanted.dtype
    np.testing.assert_array_equal(mean.values, wanted)


def test_results_have_the_order_of_dense_tensors_and_slices(exchanges):
    given = [rows(DENSE[:1], [7]), DENSE, rows(DENSE[1:2], [8]), 2 * DENSE]
    first, second, third, fourth = reductions.allreduce(given, how(name="m"))
    np.testing.assert_array_equal([second, fourth], [SUMMED, 2 * SUMMED])
    for result, row, index in ((first, DENSE[0], 7), (third, DENSE[1], 8)):
        np.testing.assert_array_equal(result.values, [row, row])
        np.testing.assert_array_equal(result.indices, [index, index])
    # Slices beside dense tensors have names of their own.
    assert [seen[:2] for seen in exchanges.seen] == [
        ("allreduce", "m"),
        ("allgather", "m.sparse"),
        ("allgather", "m.sparse.indices"),
    ]


def test_operations_are_put_on_the_requested_devices(exchanges):
    del exchanges
    where = how(device_dense="/cpu:1", device_sparse="/cpu:2")
    with tf.Graph().as_default():
        dense, slices = reductions.allreduce([tf.constant(DENSE), rows(DENSE, [0, 1, 2])], where)
        (share,) = reductions.reducescatter([tf.constant(DENSE)], where)
        devices = [tensor.device[-1] for tensor in (dense, slices.values, slices.indices, share)]
    assert devices == ["1", "2", "2", "1"]


@pytest.mark.parametrize("op", [collectives.ADASUM, collectives.MIN, collectives.MAX, collectives.PRODUCT])
def test_slices_are_refused_by_other_reductions_than_sums_and_averages(exchanges, op):
    with pytest.raises(NotImplementedError, match=r"only hvd.Sum and hvd.Average .* tf.convert_to_tensor\(slices\)"):
        reductions.allreduce([DENSE, rows(DENSE, [0, 1, 2])], how(op))
    assert exchanges.seen == []


@pytest.mark.parametrize("factor", ["prescale_factor", "postscale_factor"])
def test_slices_are_refused_with_factors(exchanges, factor):
    with pytest.raises(NotImplementedError, match="prescale_factor and postscale_factor are for dense tensors"):
        reductions.allreduce([rows(DENSE, [0, 1, 2])], how(**{factor: 2.0}))
    assert exchanges.seen == []


@pytest.mark.parametrize("compression", ["fp16", None, np.float16])
@pytest.mark.parametrize(
    "reduce, indices",
    [(reductions.allreduce, None), (reductions.allreduce, [0, 1, 2]), (reductions.reducescatter, None)],
)
def test_another_compression_is_named(exchanges, compression, reduce, indices):
    given = DENSE if indices is None else rows(DENSE, indices)
    said = re.escape(f"compression is {compression!r}, wanted hvd.Compression.none, fp16, bf16 or a Compressor")
    with pytest.raises(ValueError, match=said):
        reduce([given], how(compression=compression))
    assert exchanges.seen == []


def test_a_tensor_that_cannot_be_sent_is_named(exchanges):
    with pytest.raises(TypeError, match=r"allreduce 'texts\.1': got a tensor of type string, wanted one of"):
        reductions.allreduce([DENSE, tf.constant(["a"])], how(name="texts"))
    with pytest.raises(TypeError, match="reducescatter 'sparse': got a SparseTensor of type float32, wanted a dense"):
        reductions.reducescatter([tf.sparse.from_dense(DENSE)], how(name="sparse"))
    assert exchanges.seen == []
