"""Basics, process sets, objects and variables of Horovod's API on workers."""

from __future__ import annotations

import functools
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from lockstep._src.compat.horovod.environment import stall_settings
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

# On workers.


def basics():
    rank, size = int(os.environ["LOCKSTEP_RANK"]), int(os.environ["LOCKSTEP_WORLD_SIZE"])
    assert not hvd.is_initialized()
    for ask in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size):
        with pytest.raises(ValueError, match="use hvd.init"):
            ask()
    with pytest.raises(ValueError, match="use hvd.init"):
        hvd.allreduce(tf.zeros([1]))
    assert int(hvd.process_set_included_op()) == -1
    hvd.init()
    hvd.init()
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, size, rank, size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.gloo_enabled() and not hvd.mpi_enabled() and hvd.nccl_built() == 0
    with pytest.raises(ValueError, match="no MPI"):
        hvd.mpi_threads_supported()
    assert hvd.global_process_set.ranks == list(range(size)) and hvd.global_process_set.size() == size
    hvd.shutdown()
    assert not hvd.is_initialized()


def static_sets():
    """Uses a set of all but the first rank, and one of the first and the last."""
    size = int(os.environ["LOCKSTEP_WORLD_SIZE"])
    with pytest.raises(ValueError, match="a duplicate of process set 1"):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
    with pytest.raises(ValueError, match=f"wanted one or more, each once, from 0 to {size - 1}"):
        hvd.init(process_sets=[hvd.ProcessSet([size])])
    with pytest.raises(ValueError, match="no MPI"):
        hvd.init(comm=object())
    with pytest.raises(ValueError, match=r"process_sets: got \[0\] in it, wanted hvd.ProcessSet"):
        hvd.init(process_sets=[[0]])
    with pytest.raises(ValueError, match="process_sets: got ProcessSet.*, wanted a list"):
        hvd.init(process_sets=hvd.ProcessSet([0]))
    # An error on one rank reaches all.
    is_last = int(os.environ["LOCKSTEP_RANK"]) == size - 1
    with pytest.raises(ValueError, match=rf"^rank {size - 1}: process set of the ranks \[0, {size}\]: wanted one"):
        hvd.init(process_sets=[hvd.ProcessSet([0, size] if is_last else [0])])
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="ProcessSet: got .*, wanted a list of ranks"):
        hvd.ProcessSet([0, 1.0])
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(np.arange(size - 1, 0, -1))]
    hvd.init(process_sets=sets)
    rank = hvd.rank()
    assert [one.process_set_id for one in sets] == [1, 2]
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {
        0: list(range(size)),
        1: [0],
        2: list(range(1, size)),
    }
    assert int(hvd.size_op(2)) == size - 1
    assert [int(hvd.process_set_included_op(i)) for i in (0, 1, 2, 3)] == [1, rank == 0, rank > 0, -3]
    mine, other = (sets[0], sets[1]) if rank == 0 else (sets[1], sets[0])
    assert mine.included() and not other.included()
    assert mine.rank() == mine.ranks.index(rank)
    assert str(sets[0]) == "ProcessSet(process_set_id=1, ranks=[0], mpi_comm=None)"
    with pytest.raises(ValueError, match=f"rank {rank} is not part"):
        other.rank()
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {rank} is not a member of process set"):
        hvd.allreduce(tf.zeros([1]), process_set=other)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        built = hvd.allreduce(tf.zeros([1]), process_set=other)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {rank} is not a member of process set"):
            session.run(built)
    with pytest.raises(ValueError, match=r"allreduce: process_set is \[0\], wanted a hvd.ProcessSet"):
        hvd.allreduce(tf.zeros([1]), process_set=[0])
    with pytest.raises(ValueError, match="broadcast float32: root_rank is None, wanted a rank"):
        hvd.broadcast(tf.zeros([1]), None)
    for outside in (hvd.barrier, lambda **where: hvd.allgather_object(1, **where)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {rank} is not a member of process set"):
            outside(process_set=other)
    invalid = hvd.ProcessSet([0])
    with pytest.raises(ValueError, match="not in use"):
        hvd.allreduce(tf.zeros([1]), process_set=invalid)
    invalid.process_set_id = 10
    with pytest.raises(ValueError, match="process set 10 does not exist"):
        hvd.allreduce(tf.zeros([1]), process_set=invalid)
    collectives_in(mine)
    with pytest.raises(ValueError, match="Set HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        hvd.add_process_set([0])
    hvd.shutdown()


def collectives_in(one):
    """Roots are ranks of the job; results are in the order of the set."""
    rank, ranks = hvd.rank(), one.ranks
    own = np.float32([rank + 1])
    everyone = np.float32([r + 1 for r in ranks])
    np.testing.assert_allclose(hvd.allreduce(own, process_set=one), [everyone.mean()])
    np.testing.assert_allclose(hvd.allgather(own, process_set=one), everyone)
    np.testing.assert_allclose(hvd.broadcast(own, ranks[-1], process_set=one), everyone[-1:])
    np.testing.assert_allclose(hvd.alltoall(np.repeat(own, len(ranks)), process_set=one), everyone)
    got = hvd.reducescatter(np.repeat(own, len(ranks)), op=hvd.Sum, process_set=one)
    np.testing.assert_allclose(got, [everyone.sum()])
    slices = tf.IndexedSlices(tf.constant(own[:, None]), tf.constant([rank]), tf.constant([9, 1]))
    np.testing.assert_allclose(hvd.allreduce(slices, process_set=one).values[:, 0], everyone / len(ranks))
    assert hvd.allgather_object({"rank": rank}, process_set=one) == [{"rank": r} for r in ranks]
    assert hvd.broadcast_object(f"of {rank}", ranks[-1], process_set=one) == f"of {ranks[-1]}"
    outside = next((r for r in range(hvd.size()) if r not in ranks), None)
    if outside is not None:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"root_rank is {outside}, wanted one of the ranks"):
            hvd.broadcast(own, outside, process_set=one)
    x = tf.constant(own)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x, op=hvd.Sum, process_set=one)
    np.testing.assert_allclose(tape.gradient(y, x), [len(ranks)])


def dynamic_sets():
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(size))}
    with pytest.raises(ValueError, match=rf"^rank {size - 1}: process set of the ranks \[0, {size}\]: wanted one"):
        hvd.add_process_set([0, size] if rank == size - 1 else [0])
    first, others = hvd.add_process_set([0]), hvd.add_process_set(range(1, size))
    collectives_in(first if rank == 0 else others)
    with pytest.raises(ValueError, match="a duplicate of process set 2"):
        hvd.add_process_set(range(size - 1, 0, -1))
    with pytest.raises(ValueError, match="a duplicate of process set 0"):
        hvd.add_process_set(range(size))
    assert hvd.remove_process_set(first) and first.process_set_id is None
    assert not hvd.remove_process_set(first)
    assert not hvd.remove_process_set(hvd.global_process_set)
    # The number is free again; sets may overlap.
    ends = hvd.add_process_set([0, size - 1] if size > 2 else [0])
    assert ends.process_set_id == 1
    if ends.included():
        collectives_in(ends)
    # Ranks that want to remove different ones keep both.
    with pytest.raises(ValueError, match="different process sets: rank 0 1, rank"):
        hvd.remove_process_set(ends if rank == 0 else others)
    assert (ends.process_set_id, others.process_set_id) == (1, 2)
    # Ranks want different sets: all get an error.
    if size > 2:
        with pytest.raises(ValueError, match=r"different process sets: rank 0 \[0, 2\], rank 1 \[1, 2\]"):
            hvd.add_process_set([0, 2] if rank == 0 else [1, 2])
    hvd.remove_process_set(ends)
    hvd.remove_process_set(others)
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(size))}
    hvd.shutdown()


def some_ranks():
    """Joins some of the launcher's ranks, with new numbers; the other ranks get an error."""
    rank, size = int(os.environ["LOCKSTEP_RANK"]), int(os.environ["LOCKSTEP_WORLD_SIZE"])
    wanted = list(range(0, size, 2))
    if rank not in wanted:
        with pytest.raises(ValueError, match=f"rank {rank} is not one of the ranks"):
            hvd.init(comm=wanted)
        return
    hvd.init(comm=wanted)
    assert (hvd.rank(), hvd.size(), hvd.local_size()) == (wanted.index(rank), len(wanted), len(wanted))
    np.testing.assert_array_equal(hvd.allgather(np.int32([rank])), wanted)
    hvd.shutdown()


def objects():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for session in (False, True):
        graph = tf.Graph()
        with graph.as_default() if session else tf.init_scope():
            graph.finalize()  # as MonitoredSession does
            assert hvd.broadcast_object({"a": [rank, None]} if rank == 0 else None) == {"a": [0, None]}
            assert hvd.broadcast_object_fn(root_rank=size - 1)(np.arange(rank)).shape == (size - 1,)
            assert hvd.allgather_object("x" * rank, name="texts") == ["x" * r for r in range(size)]
            with pytest.raises(ValueError, match="the ranks name different roots"):
                hvd.broadcast_object(1, root_rank=min(rank, 1))
            wrong = tf.errors.InvalidArgumentError
            with pytest.raises(wrong, match=rf"root_rank is {size}, wanted one of the ranks \[0, "):
                hvd.broadcast_object(1, root_rank=size)
            with pytest.raises(ValueError, match=f"the ranks name different roots, by rank: .*{size}"):
                hvd.broadcast_object(1, root_rank=size if rank == 0 else 0)
            # The other ranks don't wait for an object that one rank cannot send.
            strange = threading.Lock() if rank == 1 else rank
            wanted = (TypeError, "cannot pickle") if rank == 1 else (ValueError, "the object of rank 1 cannot be pick")
            for send in (hvd.allgather_object, functools.partial(hvd.broadcast_object, root_rank=1)):
                with pytest.raises(wanted[0], match=wanted[1]):
                    send(strange)
            # Functions and lambdas, too.
            assert [one(2) for one in hvd.allgather_object(lambda x: x * rank)] == [2 * r for r in range(size)]
    hvd.shutdown()


def variables():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    many = [tf.Variable(np.full([2, 3], rank + i), dtype=t) for i, t in enumerate([tf.float32, tf.int64, tf.float32])]
    hvd.broadcast_variables(many, root_rank=1)
    for i, one in enumerate(many):
        np.testing.assert_array_equal(one, np.full([2, 3], 1 + i))
    layer = tf.keras.layers.Dense(2)
    layer.build([None, 3])
    hvd.broadcast_variables(layer.variables, root_rank=0, inplace=True)
    kernels = hvd.allgather(tf.reshape(tf.convert_to_tensor(layer.variables[0]), [1, -1]))
    np.testing.assert_array_equal(kernels, np.repeat(kernels[:1], size, 0))
    many[0].assign(tf.fill([2, 3], float(rank)))
    (value,) = hvd.broadcast_(many[:1], size - 1)
    np.testing.assert_array_equal(value, np.full([2, 3], size - 1))
    np.testing.assert_array_equal(many[0], value)
    # Keras' variables as well, and several types.
    for is_eager in (True, False):
        layer.variables[0].assign(tf.fill([3, 2], float(rank)))
        many[1].assign(tf.fill([2, 3], tf.constant(rank, tf.int64)))
        both = [layer.variables[0], many[1]]
        broadcast = functools.partial(hvd.broadcast_, both, 1)
        for got, variable in zip(broadcast() if is_eager else tf.function(broadcast)(), both, strict=True):
            np.testing.assert_array_equal(got, np.ones(variable.shape))
            np.testing.assert_array_equal(tf.convert_to_tensor(variable), got)
    for wrong in (hvd.broadcast_, hvd.broadcast_variables):
        assert not wrong([], 0)
        with pytest.raises(ValueError, match="broadcast_.*: got ndarray, wanted variables"):
            wrong([np.zeros([1])], 0)

    @tf.function
    def step(first):
        if first:
            hvd.broadcast_variables(many, root_rank=0)
        many[0].assign_add(tf.ones([2, 3]))

    many[0].assign(tf.fill([2, 3], float(rank)))
    step(True)
    np.testing.assert_array_equal(many[0], np.ones([2, 3]))
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
    hook = hvd.BroadcastGlobalVariablesHook(0)
    for resource in (True, False):
        with tf.Graph().as_default():
            one = tf.compat.v1.get_variable("v", initializer=float(rank + 5), use_resource=resource)
            two = tf.compat.v1.get_variable("w", initializer=np.int64([rank]), use_resource=resource)
            with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
                assert session.run([one, two]) == [5.0, [0]]
    hvd.shutdown()


def everything():
    basics()
    static_sets()
    dynamic_sets()
    objects()
    variables()
    some_ranks()


# Promise (horovod.md): an error of one rank reaches all ranks: roots, process sets, objects, variables that are not
# numbers.
# Promise (horovod.md): static and dynamic process sets work, and a subset of ranks can be a job.
@pytest.mark.parametrize("size", [2, 4])
def test_on_workers(size):
    """All in one job of workers, which meet several times."""
    call_workers(everything, size, timeout_s=120)


def alone():
    for variable, wanted in (
        ("HOROVOD_FUSION_THRESHOLD", "a whole number, 0 or more"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "seconds, 0 or more"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "seconds, 0 or more"),
    ):
        for value in ("64MB", "-1"):
            os.environ[variable] = value
            with pytest.raises(ValueError, match=f"{variable} is '{value}', wanted {wanted}"):
                hvd.init()
        del os.environ[variable]
    os.environ["HOROVOD_STALL_CHECK_DISABLE"] = "perhaps"
    with pytest.raises(ValueError, match="HOROVOD_STALL_CHECK_DISABLE is 'perhaps', wanted 0 or 1"):
        hvd.init()
    for value, warns in (("true", False), ("1", False), ("false", True), ("0", True), ("", True)):
        os.environ["HOROVOD_STALL_CHECK_DISABLE"] = value
        assert (stall_settings()["stall_warning_s"] > 0) == warns
    del os.environ["HOROVOD_STALL_CHECK_DISABLE"]
    # Started by another launcher, each process would be a job of its own.
    own = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("LOCKSTEP_")}
    for variable in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        os.environ[variable] = "2"
        with pytest.raises(ValueError, match=f"{variable} is 2, but LOCKSTEP_WORLD_SIZE is not set.*horovodrun -np 2"):
            hvd.init()
        os.environ[variable] = "1"
    os.environ.update(own)
    assert not hvd.is_initialized()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()) == (0, 1, 0, 1, 1)
    np.testing.assert_array_equal(hvd.allreduce([1.0, 2.0], op=hvd.Average), [1, 2])
    np.testing.assert_array_equal(hvd.alltoall([1, 2], splits=[2])[0], [1, 2])
    assert hvd.broadcast_object(3) == 3 and hvd.allgather_object(4) == [4]
    assert int(hvd.join()) == 0


# Promise (horovod.md): an error of one rank reaches all ranks: roots, process sets, objects, variables that are not
# numbers.
# Promise (horovod.md): static and dynamic process sets work, and a subset of ranks can be a job.
def test_without_a_launcher():
    """A process that nobody started as a worker is a job of its own."""
    call_workers(alone, 1, timeout_s=60)
