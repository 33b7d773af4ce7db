"""Collectives of Horovod's API against numpy, eagerly, in functions and in graphs of TensorFlow 1."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

MODES = ("eager", "function", "session")
OPS = {hvd.Sum: np.sum, hvd.Average: np.mean, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}
DTYPES = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64, np.float16, np.float32)
DTYPES += (np.float64, tf.bfloat16.as_numpy_dtype)


def run(mode, build):
    """Returns the result of `build()` as numpy arrays."""
    if mode == "eager":
        return tf.nest.map_structure(np.asarray, build(), expand_composites=True)
    if mode == "function":
        return tf.nest.map_structure(np.asarray, tf.function(build, autograph=False)(), expand_composites=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(build())


def of_ranks(dtype=np.float32, shape=(3, 2)):
    """Returns the values of all ranks, [R, *shape]; small, so that products fit small types."""
    values = np.arange(np.prod(shape)).reshape(shape) % 3
    return np.stack([(values + rank + 1) for rank in range(hvd.size())]).astype(dtype)


def adaptive_sum(of_ranks):
    """Computes Adasum's formula for pairs, then for pairs of their results, and so on."""
    if len(of_ranks) == 1:
        return of_ranks[0]
    half = len(of_ranks) // 2
    a, b = adaptive_sum(of_ranks[:half]), adaptive_sum(of_ranks[half:])
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


# On workers.


def reductions(mode):
    rank = hvd.rank()
    for dtype in DTYPES:
        everyone = of_ranks(dtype)
        exact = everyone.astype(np.float64)
        built = {op: lambda op=op, own=everyone[rank]: hvd.allreduce(tf.constant(own), op=op) for op in OPS}
        for op, got in zip(OPS, run(mode, lambda built=built: [build() for build in built.values()]), strict=True):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, OPS[op](exact, axis=0).astype(dtype), err_msg=f"{op} {dtype}")
    everyone = of_ranks()
    own = tf.constant(everyone[rank]) if mode == "eager" else everyone[rank]
    got = run(mode, lambda: hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0))
    np.testing.assert_allclose(got, 1.5 * everyone.sum(0))
    with pytest.warns(DeprecationWarning):
        got = run(mode, lambda: [hvd.allreduce(own, average=False), hvd.allreduce(own, average=True)])
    np.testing.assert_allclose(got, [everyone.sum(0), everyone.mean(0)], rtol=1e-6)
    with pytest.raises(ValueError, match="both op and average"):
        hvd.allreduce(own, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="op: got 17"):
        hvd.allreduce(own, op=17)
    with pytest.raises(ValueError, match="compression is None, wanted hvd.Compression"):
        hvd.allreduce(own, compression=None)
    # Each factor truncates integers, as the average does.
    got = run(mode, lambda: hvd.allreduce(np.int32([3, -3]), op=hvd.Sum, prescale_factor=0.5))
    np.testing.assert_array_equal(got, np.int32([1, -1]) * hvd.size())
    got = run(mode, lambda: hvd.allreduce(np.int32([3, -3]), op=hvd.Sum, postscale_factor=0.25 / hvd.size()))
    np.testing.assert_array_equal(got, [0, 0])
    got = run(mode, lambda: hvd.allreduce(np.int32([-2 if rank else -1])))
    np.testing.assert_array_equal(got, [int((1 - 2 * hvd.size()) / hvd.size())])
    # Orthogonal gradients are added.
    basis = np.eye(hvd.size(), dtype=np.float32)
    np.testing.assert_allclose(run(mode, lambda: hvd.allreduce(basis[rank], op=hvd.Adasum)), np.ones(hvd.size()))
    got = run(mode, lambda: hvd.grouped_allreduce([basis[rank], 2 * basis[rank]], op=hvd.Adasum))
    np.testing.assert_allclose(got, [np.ones(hvd.size()), 2 * np.ones(hvd.size())])
    # Neither orthogonal nor parallel, each tensor by itself.
    uneven = np.random.default_rng(7).normal(0.5, 1, [2, hvd.size(), 5]).astype(np.float32)
    got = run(mode, lambda: hvd.grouped_allreduce(list(uneven[:, rank]), op=hvd.Adasum))
    np.testing.assert_allclose(got, [adaptive_sum(list(each.astype(np.float64))) for each in uneven], rtol=1e-5)
    # Several types in a group, one of them empty.
    many = [everyone[rank], np.int64([rank]), everyone[rank] * 2, np.zeros([0, 3], np.float32)]
    got = run(mode, lambda: hvd.grouped_allreduce(many, op=hvd.Sum, name="many"))
    for one, wanted in zip(got, [everyone.sum(0), [sum(range(hvd.size()))], 2 * everyone.sum(0), many[3]], strict=True):
        np.testing.assert_allclose(one, wanted)
    assert hvd.grouped_allreduce([]) == []
    # 40000 + 40000 is more than a float16 can hold, not more than a bfloat16.
    big = np.float32([40000.0, 1.5])
    compressions = (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16)
    got = run(mode, lambda: [hvd.allreduce(big, op=hvd.Sum, compression=c) for c in compressions])
    assert [one.dtype for one in got] == [np.float32] * 3
    np.testing.assert_allclose(got[0], big * hvd.size())
    np.testing.assert_array_equal(got[1], np.float32([np.inf, 1.5 * hvd.size()]))
    np.testing.assert_allclose(got[2], big * hvd.size(), rtol=2**-7)


def averages_of_large_integers(mode):
    """Sums of which the type has no place; numpy's mean, cut off. Also with factors, in groups and in process sets."""
    rank, size = hvd.rank(), hvd.size()
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32):
        ends = np.iinfo(dtype)
        everyone = np.stack([[ends.max, ends.max - 2 * r, ends.min, ends.min + 3 * r] for r in range(size)])
        wanted = np.trunc(everyone.mean(0)).astype(dtype)
        own = everyone[rank].astype(dtype)
        rows = np.repeat(own[None], size, 0)
        for collective, value, arguments in (
            (hvd.allreduce, own, {}),
            (hvd.allreduce, own, {"process_set": hvd.global_process_set}),
            (hvd.allreduce, own, {"prescale_factor": 2.0, "postscale_factor": 0.5}),
            (hvd.grouped_allreduce, [own, own], {}),
            (hvd.reducescatter, rows, {}),
            (hvd.grouped_reducescatter, [rows, rows], {}),
        ):
            got_all = run(mode, lambda c=collective, v=value, a=arguments: c(v, **a))
            for got in got_all if isinstance(value, list) else [got_all]:
                got = got[0] if got.ndim == 2 else got
                assert got.dtype == dtype
                np.testing.assert_array_equal(got, wanted)
        # Values beyond the type saturate at its limits.
        np.testing.assert_array_equal(run(mode, lambda own=own: hvd.allreduce(own, postscale_factor=4.0))[0], ends.max)
        # Sums go round, as ever.
        total = everyone.sum(0).astype(np.int64).astype(dtype)
        np.testing.assert_array_equal(run(mode, lambda own=own: hvd.allreduce(own, op=hvd.Sum)), total)


def sparse(mode):
    """Checks dense and sparse tensors, mixed in any order, with different numbers of rows."""
    rank, size = hvd.rank(), hvd.size()
    values = [np.full([r + 1, 2], r + 1.0, np.float32) for r in range(size)]
    indices = [np.arange(r + 1, dtype=np.int64) for r in range(size)]

    def slices():
        return tf.IndexedSlices(tf.constant(values[rank]), tf.constant(indices[rank]), tf.constant([9, 2], tf.int64))

    def check(got, divisor):
        # A session gives IndexedSlicesValue, the other modes a list of the parts.
        parts = [got.values, got.indices] if hasattr(got, "indices") else list(got)[:2]
        np.testing.assert_allclose(parts[0], np.concatenate(values) / divisor)
        np.testing.assert_array_equal(parts[1], np.concatenate(indices))

    def flat(result):
        return [[one.values, one.indices] if isinstance(one, tf.IndexedSlices) else one for one in result]

    for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
        dense = np.float32([rank])
        got = run(mode, lambda op=op, d=dense: flat(hvd.grouped_allreduce([d, slices(), d + 1, slices()], op=op)))
        for place, extra in ((0, 0), (2, 1)):
            np.testing.assert_allclose(got[place], [sum(r + extra for r in range(size)) / divisor])
        check(got[1], divisor)
        check(got[3], divisor)
        got = run(mode, lambda op=op: flat(hvd.grouped_allreduce([slices(), np.float32([1])], op=op)))
        check(got[0], divisor)
        check(run(mode, lambda op=op: flat([hvd.allreduce(slices(), op=op)])[0]), divisor)
    # Values are compressed as dense ones are.
    big = tf.IndexedSlices(tf.constant([[70000.0]]), tf.constant([0]), tf.constant([1, 1]))
    assert np.isinf(hvd.allreduce(big, compression=hvd.Compression.fp16).values.numpy()).all()
    whole = tf.IndexedSlices(tf.constant([[3]], tf.int32), tf.constant([0]), tf.constant([1, 1]))
    np.testing.assert_array_equal(hvd.allreduce(whole).values, np.full([size, 1], 3 / size))
    for arguments in ({"op": hvd.Min}, {"op": hvd.Adasum}, {"prescale_factor": 0.5}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError):
            hvd.grouped_allreduce([tf.zeros([1]), big], **arguments)


def exchanges(mode):
    rank, size = hvd.rank(), hvd.size()
    everyone = of_ranks()
    wanted = np.concatenate([everyone[r][: r + 1] for r in range(size)])
    for dtype in (np.float32, np.int16, np.bool_, np.float16, tf.bfloat16.as_numpy_dtype, np.uint32):
        own = everyone[rank][: rank + 1].astype(dtype)
        np.testing.assert_array_equal(run(mode, lambda own=own: hvd.allgather(own)), wanted.astype(dtype))
        got = run(mode, lambda own=own: hvd.broadcast(own[:1], root_rank=size - 1))
        np.testing.assert_array_equal(got, everyone[size - 1][:1].astype(dtype))
    # Slices stand for their dense tensor.
    got = run(mode, lambda: hvd.allgather(tf.IndexedSlices(tf.constant([rank]), tf.constant([1]), tf.constant([2]))))
    np.testing.assert_array_equal(got, np.stack([np.zeros(size), np.arange(size)], 1).ravel())
    got = run(mode, lambda: hvd.grouped_allgather([everyone[rank], np.int64([rank])]))
    np.testing.assert_array_equal(got[0], everyone.reshape(-1, 2))
    np.testing.assert_array_equal(got[1], range(size))
    # Rank r sends r + s rows to rank s, and has two more.
    splits = [rank + s for s in range(size)]
    rows = np.arange(100 * rank, 100 * rank + sum(splits) + 2)
    wanted = [
        np.arange(100 * r + sum(r + s for s in range(rank)), 100 * r + sum(r + s for s in range(rank + 1)))
        for r in range(size)
    ]
    for dtype in (np.int32, np.int64):
        got, received = run(mode, lambda dtype=dtype: hvd.alltoall(rows, splits=np.array(splits, dtype)))
        np.testing.assert_array_equal(got, np.concatenate(wanted))
        np.testing.assert_array_equal(received, [r + rank for r in range(size)])
        assert received.dtype == dtype
    got = run(mode, lambda: hvd.alltoall(np.arange(2 * size) + 10 * rank))
    np.testing.assert_array_equal(got, [10 * r + 2 * rank + i for r in range(size) for i in range(2)])
    # There are size + 1 rows, and the first rank gets two.
    uneven = np.stack([np.arange(2.0 * (size + 1), dtype=np.float32).reshape(-1, 2) * (r + 1) for r in range(size)])
    shares = np.array_split(uneven.astype(np.float64), size, axis=1)[rank]
    for op, oracle in OPS.items():
        got = run(mode, lambda op=op: hvd.reducescatter(uneven[rank], op=op))
        np.testing.assert_allclose(got, oracle(shares, axis=0), rtol=1e-6)
    got = run(
        mode, lambda: hvd.grouped_reducescatter([uneven[rank], uneven[rank] * 2], op=hvd.Sum, prescale_factor=0.5)
    )
    np.testing.assert_allclose(got[0], 0.5 * shares.sum(0))
    np.testing.assert_allclose(got[1], shares.sum(0))
    # Integers are not compressed.
    whole = np.full([size], 70000, np.int64)
    got = run(mode, lambda: hvd.reducescatter(whole, op=hvd.Sum, compression=hvd.Compression.fp16))
    np.testing.assert_array_equal(got, [70000 * size])
    assert hvd.grouped_allgather([]) == [] and hvd.grouped_reducescatter([]) == []
    places = run(mode, lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()])
    assert places == [rank, size, rank, size]


def names():
    """Checks named tensors in any order, also eagerly, with and without a scope's name in the tensor's."""
    rank, size = hvd.rank(), hvd.size()
    order = np.random.default_rng(rank).permutation(20)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        asked = {i: hvd.allreduce(tf.fill([int(i)], 1.0), op=hvd.Sum, name=f"t{i}") for i in order}
        # Ranks have it in other scopes.
        with tf.name_scope(f"scope_{rank}"):
            asked["x"] = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="x", ignore_name_scope=True)
        for key, got in session.run(asked).items():
            np.testing.assert_array_equal(got, np.full([3 if key == "x" else key], size))
        assert asked[order[0]].op.name == f"t{order[0]}"
    assert hvd.allreduce(tf.constant(1.0), name="eager", op=hvd.Sum).numpy() == size


def threads():
    """Checks that a second eager request for a name fails while the first one waits, and only on this rank."""
    if hvd.rank() > 0:
        assert hvd.allreduce(1.0, op=hvd.Sum, name="go").numpy() == hvd.size()
        assert hvd.allreduce(1.0, op=hvd.Sum, name="twice").numpy() == hvd.size()
        return
    outcomes: queue.Queue = queue.Queue()

    def ask():
        try:
            outcomes.put(hvd.allreduce(1.0, op=hvd.Sum, name="twice").numpy())
        except tf.errors.InvalidArgumentError as error:
            outcomes.put(str(error))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    assert "'twice': this rank already waits for one of this name" in outcomes.get(timeout=60)
    hvd.allreduce(1.0, op=hvd.Sum, name="go")
    assert outcomes.get(timeout=60) == hvd.size()
    for thread in asking:
        thread.join()


def gradients():
    """Checks Horovod's documented gradients; minima, maxima and products have the mathematical ones."""
    rank, size = hvd.rank(), hvd.size()
    weights = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    total = weights * sum(range(1, size + 1))

    def gradient(mode, collective, own):
        def build():
            x = tf.constant(own)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = collective(x)
            # Rank r's loss weighs what comes by r + 1.
            upstream = (tf.constant(weights) if y.shape == weights.shape else tf.ones_like(y)) * (rank + 1)
            return tape.gradient(y, x, upstream)

        return run(mode, build)

    own = np.full([3, 2], rank + 1, np.float32)
    total_of_ones = np.full([3, 2], sum(range(1, size + 1)), np.float32)
    cases = {
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), total),
        "average": (lambda x: hvd.allreduce(x), total / size),
        "min": (lambda x: hvd.allreduce(x, op=hvd.Min), total * (rank == 0)),
        "max": (lambda x: hvd.allreduce(x, op=hvd.Max), total * (rank == size - 1)),
        "product": (lambda x: hvd.allreduce(x, op=hvd.Product), total * np.prod(range(1, size + 1)) / (rank + 1)),
        "allgather": (hvd.allgather, total_of_ones / size),
        "broadcast": (lambda x: hvd.broadcast(x, 1), total / size * (rank == 1)),
    }
    # Only some results of a group are used.
    many = [tf.constant([1.0]), tf.constant([2.0], tf.float64), tf.constant([3.0], tf.float64)]
    for collective in (lambda x: hvd.grouped_allreduce(x, op=hvd.Sum), hvd.grouped_allgather):
        with tf.GradientTape() as tape:
            tape.watch(many)
            y = collective(many)[1]
        factor = 1 if collective is hvd.grouped_allgather else size
        got = tape.gradient(y, many, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        np.testing.assert_allclose([float(g[0]) for g in got], [0, factor, 0])
    for mode in MODES[:2] if size == 2 else MODES[:1]:
        for name, (collective, wanted) in cases.items():
            np.testing.assert_allclose(gradient(mode, collective, own), wanted, rtol=1e-6, err_msg=name)
        rows = np.ones([2 * size, 2], np.float32)
        by_rank = np.repeat(np.arange(1, size + 1, dtype=np.float32), 2)[:, None] * np.ones([1, 2])
        for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
            got = gradient(mode, lambda x, op=op: hvd.reducescatter(x, op=op, prescale_factor=0.5), rows)
            np.testing.assert_allclose(got, 0.5 * factor * by_rank)
        np.testing.assert_allclose(gradient(mode, hvd.alltoall, rows), by_rank)
        # The rows behind the splits went nowhere.
        got = gradient(mode, lambda x: hvd.alltoall(x, splits=np.ones([size], np.int64))[0], rows)
        np.testing.assert_allclose(got, np.r_[np.arange(1, size + 1), np.zeros(size)][:, None] * np.ones([1, 2]))


def joins():
    """Checks that ranks that have joined take part in reductions with neutral values."""
    rank, size = hvd.rank(), hvd.size()
    if rank == 0:
        return int(hvd.join())
    others = range(1, size)
    for op, wanted in ((hvd.Sum, sum), (hvd.Min, min), (hvd.Max, max), (hvd.Product, lambda of: np.prod(list(of)))):
        assert hvd.allreduce(np.float32(rank), op=op, name=f"join.{op}").numpy() == wanted(others)
    np.testing.assert_allclose(hvd.allreduce(np.float32(rank), name="join.mean").numpy(), sum(others) / size)
    assert hvd.allreduce(np.uint8(200), name="join.bytes").numpy() == 200 * len(others) // size
    with pytest.raises(tf.errors.FailedPreconditionError, match="rank 0 has joined"):
        hvd.allgather(np.float32([1]), name="join.gather")
    return int(hvd.join())


def everything():
    hvd.init()
    # Results that depend on the number of ranks don't depend on the mode.
    for mode in MODES if hvd.size() == 2 else MODES[:1]:
        reductions(mode)
        averages_of_large_integers(mode)
        sparse(mode)
        exchanges(mode)
    names()
    threads()
    gradients()
    last = joins()
    assert last in range(1, hvd.size())
    assert hvd.barrier() is None
    hvd.shutdown()
    return last


# Promise (horovod.md): collectives compute what Horovod's do: reductions, gathers, exchanges, types, sparse tensors,
# compression, gradients, join.
@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size):
    """All cases in one job of workers."""
    assert len(set(call_workers(everything, size, timeout_s=120))) == 1
