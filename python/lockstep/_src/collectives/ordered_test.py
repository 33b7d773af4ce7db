"""Tests of collectives against numpy, in graphs, in tf.function and eagerly."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

SIZES = (1, 2, 4)
MODES = ("session", "function", "eager")


def run(mode, build, *inputs):
    """Returns the results of `build(*tensors)` for `inputs` as numpy arrays."""
    if mode == "eager":
        return tf.nest.map_structure(np.asarray, build(*map(tf.constant, inputs)))
    if mode == "function":
        return tf.nest.map_structure(np.asarray, tf.function(build)(*map(tf.constant, inputs)))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placeholders = [tf.compat.v1.placeholder(np.asarray(i).dtype, np.shape(i)) for i in inputs]
        return session.run(build(*placeholders), dict(zip(placeholders, inputs, strict=True)))


def random_inputs(seed, rank):
    """Returns inputs of `rank`: tensors for reductions, a random number of rows, and splits of them."""
    rng = np.random.default_rng([seed, rank])
    same = [rng.integers(-8, 8, shape).astype(np.float32) for shape in ((3, 5), (), (0, 4), (70, 300), (129,))]
    rows = rng.integers(-8, 8, (int(rng.integers(0, 5)), 3)).astype(np.float32)
    size = context.world_size
    cuts = np.sort(rng.integers(0, len(rows) + 1, size - 1))
    return same, rows, np.diff(np.concatenate([[0], cuts, [len(rows)]])).astype(np.int64)


# Functions that run on workers.


def all_ops(seed):
    size, rank = context.world_size, context.rank
    everyone = [random_inputs(seed, r) for r in range(size)]
    same, rows, splits = everyone[rank]
    stacked = [np.stack([e[0][i] for e in everyone]) for i in range(len(same))]
    begin = [np.concatenate([[0], np.cumsum(e[2])]) for e in everyone]
    rows_for_me = [e[1][begin[r][rank] : begin[r][rank + 1]] for r, e in enumerate(everyone)]
    shares = np.array_split(np.arange(70), size)
    for mode in MODES:
        for op, oracle in (("sum", np.sum), ("mean", np.mean), ("min", np.min), ("max", np.max), ("prod", np.prod)):
            reduced = run(mode, lambda *t, op=op: ordered.allreduce(list(t), op=op), *same)
            for got, parts in zip(reduced, stacked, strict=True):
                np.testing.assert_allclose(got, oracle(parts, axis=0), err_msg=f"{mode} {op}")
            scattered = run(mode, lambda t, op=op: ordered.reducescatter(t, op=op), same[3])
            np.testing.assert_allclose(scattered, oracle(stacked[3], axis=0)[shares[rank]], err_msg=f"{mode} {op}")
        given = run(mode, lambda *t: ordered.broadcast([*t, tf.constant(rank)], root=size - 1), *same)
        for got, parts in zip(given, [*stacked, np.arange(size)], strict=True):
            np.testing.assert_array_equal(got, parts[-1], err_msg=mode)
        gathered = run(mode, ordered.allgather, rows)
        np.testing.assert_array_equal(gathered, np.concatenate([e[1] for e in everyone]), err_msg=mode)
        received, received_splits = run(mode, ordered.alltoall, rows, splits)
        np.testing.assert_array_equal(received, np.concatenate(rows_for_me), err_msg=mode)
        np.testing.assert_array_equal(received_splits, [len(r) for r in rows_for_me], err_msg=mode)
        even, _ = run(mode, ordered.alltoall, np.full([size * 2], rank))
        np.testing.assert_array_equal(even, np.repeat(np.arange(size), 2), err_msg=mode)
        assert run(mode, behind_a_barrier) == 7


def rows_of_no_elements():
    """Checks that rows [0] are counted, which have no memory."""
    size, rank = context.world_size, context.rank
    for mode in MODES:
        for width in ((0,), (2, 0)):
            rows = np.zeros([rank + 2, *width], np.float32)
            assert run(mode, ordered.allgather, rows).shape == (sum(range(2, size + 2)), *width), mode
            received, splits = run(mode, ordered.alltoall, np.zeros([size, *width]), np.ones(size, np.int64))
            assert received.shape == (size, *width) and splits.tolist() == [1] * size, mode
            assert run(mode, ordered.reducescatter, np.zeros([2 * size, *width])).shape == (2, *width), mode
            assert run(mode, ordered.broadcast, rows[:2]).shape == (2, *width), mode


def behind_a_barrier():
    barrier = ordered.barrier()
    with tf.control_dependencies([] if barrier is None else [barrier]):
        return tf.constant(7)


def all_types():
    size, rank = context.world_size, context.rank
    integers = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)
    for dtype in (tf.float64, tf.float16, tf.bfloat16, *integers):
        value = tf.cast(tf.range(5) + rank, dtype)
        expected = np.arange(5) * size + sum(range(size))
        assert ordered.allreduce(value).dtype == dtype
        np.testing.assert_array_equal(tf.cast(ordered.allreduce(value), tf.int64), expected, err_msg=dtype.name)
        np.testing.assert_array_equal(tf.cast(ordered.allgather(value)[:5], tf.int64), np.arange(5))
    mine = tf.constant([rank == 0, True, False])
    np.testing.assert_array_equal(ordered.allreduce(mine, op="max"), [True, True, False])
    np.testing.assert_array_equal(ordered.allreduce(mine, op="min"), [size == 1, True, False])
    several = [tf.constant(1.5 + rank), tf.constant([2 + rank], tf.uint16), tf.constant([[True, rank == 0]])]
    for got, wanted in zip(ordered.broadcast(several), [1.5, [2], [[True, True]]], strict=True):
        np.testing.assert_array_equal(got, wanted)


def gradients(mode):
    """Checks gradients where each rank's loss is a sum of its results with weights of its own."""
    size, rank = context.world_size, context.rank
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(size, 2 * size, 3))
    x = rng.normal(size=(size, 2, 3))
    total = weights.sum(0)

    def gradient(function, value):
        def build(t):
            if mode == "session":
                y = function(t)
                return tf.gradients(y, t, grad_ys=tf.constant(weights[rank])[: tf.shape(y)[0]])[0]
            with tf.GradientTape() as tape:
                tape.watch(t)
                y = function(t)
            return tape.gradient(y, t, output_gradients=tf.constant(weights[rank])[: tf.shape(y)[0]])

        return run(mode, build, value)

    np.testing.assert_allclose(gradient(ordered.allreduce, x[rank]), total[:2])
    np.testing.assert_allclose(gradient(lambda t: ordered.allreduce(t, op="mean"), x[rank]), total[:2] / size)
    root = size - 1
    expected = total[:2] if rank == root else np.zeros((2, 3))
    np.testing.assert_allclose(gradient(lambda t: ordered.broadcast(t, root=root), x[rank]), expected)
    np.testing.assert_allclose(gradient(ordered.allgather, x[rank]), total[2 * rank : 2 * rank + 2])
    wide = rng.normal(size=(size, size, 3))
    expected = np.stack([weights[r][rank] for r in range(size)])
    np.testing.assert_allclose(gradient(lambda t: ordered.alltoall(t)[0], wide[rank]), expected)
    expected = np.concatenate([weights[r][:1] for r in range(size)])
    np.testing.assert_allclose(gradient(ordered.reducescatter, wide[rank]), expected)
    mean = gradient(lambda t: ordered.reducescatter(t, op="mean"), wide[rank])
    np.testing.assert_allclose(mean, expected / size)


def large_results_may_live_long():
    """Checks that more results can be kept than shared memory holds."""
    context.options.shared_bytes_per_rank = 8 << 20
    x = tf.fill([1 << 18], float(context.rank + 1))
    kept = [ordered.allreduce(x) for _ in range(16)]
    kept += [y + 1 for y in kept]
    expected = sum(range(context.world_size + 1))
    for i, y in enumerate(kept):
        np.testing.assert_array_equal(y, np.full([1 << 18], expected + i // 16))
    variable = tf.Variable(tf.zeros([1 << 18]))
    variable.assign(kept[0])
    variable.assign_add(x)
    np.testing.assert_array_equal(kept[0], np.full([1 << 18], expected))


def inputs_are_needed_behind_results():
    """Checks large inputs that are used later; a result may take an input's memory only if nothing else uses it."""
    variable = tf.Variable(tf.fill([1 << 18], 3.0))

    @tf.function
    def step(x):
        alone = ordered.allreduce(x * 2)
        shared = x * 3
        return alone, ordered.allreduce(shared), shared + 1, ordered.allreduce(variable) + variable

    total = sum(range(1, context.world_size + 1))
    for _ in range(3):
        results = step(tf.fill([1 << 18], float(context.rank + 1)))
        expected = (2 * total, 3 * total, 3 * (context.rank + 1) + 1, 3 * context.world_size + 3)
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, np.full([1 << 18], value))


def on_hosts_of_their_own(function, *args):
    """Calls a function on a worker that claims to be on a host of its own."""
    os.environ["LOCKSTEP_HOST"] = os.environ["LOCKSTEP_RANK"]
    function(*args)


def bad_arguments_of_the_last_rank():
    last = context.rank == context.world_size - 1
    for build in (
        lambda: ordered.alltoall(tf.ones([4]), [3] * context.world_size if last else [1] * context.world_size),
        lambda: ordered.reducescatter(tf.ones([4]), counts=[-1] if last else [2] * context.world_size),
        lambda: ordered.broadcast(tf.ones([4]), root=9),
    ):
        try:
            build()
        except tf.errors.InvalidArgumentError as e:
            assert "rank" in e.message
        else:
            raise AssertionError("no error")
    assert ordered.allreduce(1.0).numpy() == context.world_size  # the next collective succeeds


def different_shapes():
    try:
        ordered.allreduce(tf.ones([2, 3] if context.rank == 0 else [3, 2]))
    except tf.errors.FailedPreconditionError as e:
        return e.message


def other_names():
    """Calls eager collectives whose names differ in their numbers, and then in their text; returns the error."""
    rank = context.rank
    with tf.GradientTape() as tape:
        x = tf.Variable([1.0])
        y = ordered.allreduce(x, name=f"step_{rank}/loss{rank}")
    assert tape.gradient(y, x).numpy() == [2.0]
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        ordered.allreduce(tf.constant([1.0]), name="loss" if rank == 0 else "accuracy")
    return caught.value.message


def first_error(function):
    try:
        function()
    except tf.errors.OpError as e:
        return type(e).__name__, e.message
    return None


def peer_dies():
    ordered.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return first_error(lambda: ordered.allreduce(1.0))


def wait_for(path):
    while not path.exists():
        time.sleep(0.05)


def step_fails_here_while_a_collective_waits(folder):
    """Fails another operation of the step on rank 0; rank 1 calls the collective only when rank 0 has its error."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        waiting = ordered.barrier(name="first")
        x = tf.compat.v1.placeholder(tf.int32, [])
        failing = tf.debugging.assert_positive(tf.numpy_function(after_a_while, [x], tf.int32))
        session.run(waiting)
        if context.rank == 0:
            error = first_error(lambda: session.run([waiting, failing], {x: -1}))
            (folder / "failed").touch()
            return error
        wait_for(folder / "failed")
        return first_error(lambda: [session.run(waiting) for _ in range(2)])


def after_a_while(x):
    time.sleep(1.5)
    return x


def session_is_closed_while_a_collective_waits(folder):
    with tf.Graph().as_default():
        session = tf.compat.v1.Session()
        waiting = ordered.barrier(name="first")
        session.run(waiting)
        if context.rank == 0:
            threading.Timer(1.5, session.close).start()
            error = first_error(lambda: session.run(waiting))
            (folder / "closed").touch()
            return error
        wait_for(folder / "closed")
        return first_error(lambda: [session.run(waiting) for _ in range(2)])


# Tests.


@pytest.mark.workers
@pytest.mark.parametrize("size", SIZES)
def test_every_op_agrees_with_numpy_in_every_mode(size):
    call_workers(all_ops, size, 20240 + size)


@pytest.mark.workers
def test_rows_without_elements_are_carried_on_a_host_and_between_hosts():
    call_workers(rows_of_no_elements, 2)
    call_workers(on_hosts_of_their_own, 2, rows_of_no_elements)


@pytest.mark.workers
def test_every_type_is_carried():
    call_workers(all_types, 2)


@pytest.mark.workers
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_the_sum_of_all_losses(mode):
    call_workers(gradients, 2, mode)


def test_no_gradient_is_invented_for_a_minimum():
    with tf.GradientTape() as tape:
        x = tf.constant(1.0)
        tape.watch(x)
        y = ordered.allreduce(x, op="min")
    with pytest.raises(LookupError, match="no gradient is defined for the reduction 'min'"):
        tape.gradient(y, x)


@pytest.mark.workers
@pytest.mark.parametrize("function", ["large_results_may_live_long", "inputs_are_needed_behind_results"])
def test_results_that_live_long_leave_room_for_others_and_are_not_written_over(function):
    call_workers(globals()[function], 2)
    call_workers(on_hosts_of_their_own, 2, globals()[function])


@pytest.mark.workers
def test_every_op_agrees_with_numpy_between_hosts():
    call_workers(on_hosts_of_their_own, 2, all_ops, 20250)


@pytest.mark.workers
def test_bad_arguments_on_one_rank_raise_on_all_and_the_job_goes_on():
    call_workers(bad_arguments_of_the_last_rank, 2)


@pytest.mark.workers
def test_shapes_that_differ_are_named_on_both_ranks():
    for message in call_workers(different_shapes, 2):
        assert "[2,3]" in message and "[3,2]" in message


@pytest.mark.workers
def test_eager_collectives_are_named_as_the_program_calls_them():
    for message in call_workers(other_names, 2):
        assert "loss" in message and "accuracy" in message, message


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="op is 'average', wanted one of sum, mean, min, max, prod"):
        ordered.allreduce(1.0, op="average")


# Promise (hybridbackend.md): an error that names it (HybridBackend, a hang: a worker fails or is stuck: the others wait
# for ever).
@pytest.mark.workers
def test_a_killed_peer_is_named():
    survivor, killed = call_workers(peer_dies, 2, check=False)
    assert killed.exit_code == -9
    kind, message = survivor.value
    assert kind in ("UnavailableError", "InternalError") and "rank 1" in message


@pytest.mark.workers
@pytest.mark.parametrize(
    "situation", [step_fails_here_while_a_collective_waits, session_is_closed_while_a_collective_waits]
)
def test_a_cancelled_step_frees_its_collective_and_tells_the_peers(situation, tmp_path):
    here, peer = call_workers(situation, 2, tmp_path)
    assert here is not None
    assert peer[0] == "CancelledError" and "rank 0" in peer[1] and "was cancelled" in peer[1]
