"""Tests that all ranks run collectives in the same order, regardless of other nodes that they build and run."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep.testing import call_workers

tf1 = tf.compat.v1

RUNS = 10


def executed(session, fetches, feed=None):
    """Returns the nodes that a run executes, by name: those that are left after the optimization of the graph."""
    metadata = tf1.RunMetadata()
    session.run(fetches, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return {n.name: n for graph in metadata.partition_graphs for n in graph.node}


def chain_of(session, fetches, feed=None, types=False):
    """Returns the names of a run's collectives in the order of their chain; with `types`, pairs (name, type of op)."""
    nodes = executed(session, fetches, feed)
    ours = [n.name for n in nodes.values() if "lockstep_priority" in n.attr and n.op != "LockstepRunCheck"]

    def before(name, seen):
        for inputs in nodes[name].input:
            source = inputs.lstrip("^").split(":")[0]
            if source not in seen:
                seen.add(source)
                before(source, seen)
        return seen

    names = sorted(ours, key=lambda name: len(before(name, set()) & set(ours)))
    return [(name, nodes[name].op) for name in names] if types else names


def message_of(function):
    try:
        function()
    except tf.errors.OpError as e:
        return f"{type(e).__name__}: {e.message}"
    return "no error"


def expected(value):
    """Returns the sum over ranks of `value * (rank + 1)`."""
    return value * sum(range(1, context.world_size + 1))


def scaled(value):
    return tf.constant(float(value)) * (context.rank + 1.0)


# Functions that run on workers.


def build_in_orders_of_their_own():
    names = [f"op_{c}" for c in "abcdefgh"]
    own = names if context.rank == 0 else list(reversed(names))
    with tf.Graph().as_default(), tf1.Session() as session:
        sums = {name: ordered.allreduce(scaled(names.index(name)), name=name) for name in own}
        for _ in range(RUNS):
            values = session.run(sums)
            assert values == {name: expected(i) for i, name in enumerate(names)}


def write_summaries_on_the_chief():
    """Adds nodes on rank 0 only, which shift the names of later nodes; rank 0 also runs them in some steps."""
    with tf.Graph().as_default(), tf1.Session() as session:
        if context.rank == 0:
            with tf.name_scope("model"):
                extra = tf.constant(1.0, name="allreduce") + 1.0
        with tf.name_scope("model"):
            first = ordered.allreduce(scaled(1))
            second = ordered.allgather(tf.reshape(first, [1]) + (extra if context.rank == 0 else 2.0))
            third = ordered.allreduce(tf.reduce_sum(second))
        if context.rank == 0:
            summary = tf1.summary.merge([tf1.summary.scalar("first", first), tf1.summary.scalar("third", third)])
        for step in range(RUNS):
            fetches = [first, third]
            if context.rank == 0 and step % 3 == 1:
                fetches.append(summary)
            values = session.run(fetches)
            world = context.world_size
            assert values[:2] == [expected(1), world * world * (expected(1) + 2)]


def run_several_signatures():
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("v", initializer=scaled(3), use_resource=True)
        init = variable.assign(ordered.broadcast(tf.identity(variable.initial_value)))
        train = variable.assign_add(ordered.allreduce(scaled(1), name="gradient"))
        evaluate = ordered.allgather(tf.reshape(variable, [1]), name="all_values")
        session.run(init)
        for step in range(3):
            session.run(train)
            np.testing.assert_array_equal(session.run(evaluate), [3 + expected(step + 1)] * context.world_size)
        session.run([train, evaluate])


def run_different_graphs():
    with tf.Graph().as_default(), tf1.Session() as session:
        same = ordered.allreduce(1.0, name="same")
        own = ordered.allreduce([1.0, 2.0], name=f"other_{'ab'[context.rank]}")
        more = ordered.barrier(name="zz") if context.rank == 0 else tf.no_op()
        messages = [message_of(lambda: session.run([same, own])), message_of(lambda: session.run([same, more]))]
        assert session.run(same) == context.world_size
        return messages


def run_a_known_graph_while_the_peer_runs_a_new_one():
    with tf.Graph().as_default(), tf1.Session() as session:
        known = ordered.allreduce(1.0, name="known")
        new = ordered.allreduce(1.0, name="new")
        session.run(known)
        return message_of(lambda: session.run(known if context.rank == 0 else new))


def conditionals(control_flow_v2):
    if not control_flow_v2:
        tf1.disable_control_flow_v2()
    with tf.Graph().as_default(), tf1.Session() as session:
        first = ordered.allreduce(scaled(1), name="a_first")
        outer = tf1.placeholder(tf.bool, [])
        inner = tf1.placeholder(tf.bool, [])

        def in_inner():
            return ordered.allreduce(scaled(3), name="c_inner")

        def in_outer():
            with tf.control_dependencies([ordered.barrier(name="d_unused")]):
                nested = tf1.cond(inner, in_inner, lambda: tf.constant(-1.0))
            return nested + ordered.allreduce(scaled(2), name="b_outer")

        branched = tf1.cond(outer, in_outer, lambda: ordered.allreduce(scaled(5), name="e_else"))
        last = ordered.allreduce(scaled(4), name="f_last")
        lasting = ordered.allreduce(branched, op="max", name="g_behind")
        for step in range(RUNS * 2):
            feed = {outer: step % 2 == 0, inner: step % 4 == 0}
            values = session.run([first, branched, last, lasting], feed)
            inside = (expected(3) if feed[inner] else -1) + expected(2)
            middle = inside if feed[outer] else expected(5)
            assert values == [expected(1), middle, expected(4), middle], (step, values)


def choices_of_many():
    with tf.Graph().as_default(), tf1.Session() as session:
        which = tf1.placeholder(tf.int32, [])
        chosen = tf.switch_case(which, [lambda i=i: ordered.allreduce(scaled(i), name=f"choice_{i}") for i in range(3)])
        last = ordered.allreduce(scaled(7), name="last")
        for step in range(RUNS):
            assert session.run([chosen, last], {which: step % 3}) == [expected(step % 3), expected(7)]


def loops(mode):
    def build():
        first = ordered.allreduce(scaled(1), name="a")

        def body(i, total):
            mine = ordered.allreduce(scaled(1), name="free")  # waits for no other iteration
            inner = tf.while_loop(
                lambda j, _: j < 2, lambda j, t: (j + 1, t + ordered.allreduce(scaled(1), name="in")), [0, 0.0]
            )[1]
            chosen = tf.cond(tf.equal(i % 2, 0), lambda: ordered.allreduce(scaled(10), name="even"), lambda: 0.0)
            return i + 1, total + mine + inner + chosen

        # The loops run side by side, as a loop and its gradient do.
        totals = [tf.while_loop(lambda i, _: i < 4, body, [0, 0.0], parallel_iterations=10)[1] for _ in range(2)]
        last = ordered.allreduce(scaled(2), name="z")
        return first, *totals, last

    wanted = (expected(1), expected(4 + 8 + 20), expected(4 + 8 + 20), expected(2))
    if mode == "function":
        function = tf.function(build)
        for _ in range(RUNS):
            assert tuple(float(v) for v in function()) == wanted
        return
    if mode == "session_v1":
        tf1.disable_control_flow_v2()
    with tf.Graph().as_default(), tf1.Session() as session:
        fetches = build()
        for _ in range(RUNS):
            assert tuple(session.run(fetches)) == wanted


def functions_that_call_functions():
    @tf.function(experimental_attributes={"_noinline": True})
    def exchange(x):
        return ordered.allreduce(x, name="within") + ordered.allreduce(x * 2, name="within")

    @tf.function
    def step(x):
        return exchange(x) + exchange(x + 1) + ordered.allreduce(x, name="beside")

    for _ in range(RUNS):
        assert float(step(scaled(1))) == 3 * expected(1) + 3 * (expected(1) + context.world_size) + expected(1)
    with tf.Graph().as_default(), tf1.Session() as session:
        fetches = [exchange(scaled(2)), ordered.allreduce(scaled(1)), exchange(scaled(3))]
        for _ in range(RUNS):
            assert session.run(fetches) == [3 * expected(2), expected(1), 3 * expected(3)]


def assertions_before_collectives():
    """Runs collectives behind assertions of a function, each a conditional whose branches both lead on."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])])
    def step(lengths, values):
        # Each of these asserts that the lengths fit the values.
        ragged = [tf.RaggedTensor.from_row_lengths(values + i, lengths) for i in range(4)]
        behind = [ordered.allreduce(one.to_sparse().values, name=f"behind_{i}") for i, one in enumerate(ragged)]
        beside = [ordered.allreduce(values + i, name=f"a_beside_{i}") for i in range(4)]
        return [*behind, *beside, *[ordered.allreduce(one + other) for one, other in zip(behind, beside, strict=True)]]

    for _ in range(RUNS):
        sums = [float(value[0]) for value in step([1, 1], [scaled(1), 0.0])]
        first = [expected(1) + i * context.world_size for i in range(4)]
        assert sums == [*first, *first, *[2 * value * context.world_size for value in first]]


# Tests.


@pytest.mark.workers
@pytest.mark.parametrize(
    "program",
    [build_in_orders_of_their_own, write_summaries_on_the_chief, run_several_signatures, choices_of_many],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_keep_one_order_when_they(program, size):
    call_workers(program, size)


@pytest.mark.workers
@pytest.mark.parametrize("control_flow_v2", [False, True])
def test_branches_not_taken_neither_kill_nor_stop_the_chain(control_flow_v2):
    call_workers(conditionals, 2, control_flow_v2)


@pytest.mark.workers
def test_assertions_do_not_count_as_branches():
    call_workers(assertions_before_collectives, 2)


@pytest.mark.workers
@pytest.mark.parametrize("mode", ["session", "session_v1", "function"])
def test_loops_are_links_of_the_chain_with_a_chain_inside(mode):
    call_workers(loops, 2, mode)


@pytest.mark.workers
def test_functions_are_links_of_the_chain():
    call_workers(functions_that_call_functions, 2)


# Promise (hybridbackend.md): an error that names the first difference (HybridBackend, a hang: workers build unlike
# graphs).
@pytest.mark.workers
def test_different_graphs_raise_on_every_rank_and_name_the_first_difference():
    for first, second in call_workers(run_different_graphs, 2):
        assert first.startswith("FailedPreconditionError")
        assert "collective 1 is" in first and "'other_a'" in first and "'other_b'" in first
        assert second.startswith("FailedPreconditionError")
        assert "collective 2 is missing on rank 1" in second and "LockstepBarrier 'zz'" in second


@pytest.mark.workers
def test_a_known_graph_beside_a_new_one_raises_on_every_rank():
    for message in call_workers(run_a_known_graph_while_the_peer_runs_a_new_one, 2):
        assert message.startswith("FailedPreconditionError")
        assert "known" in message and "for the first time" in message


def test_the_order_is_by_level_then_priority_then_name():
    with tf.Graph().as_default(), tf1.Session() as session:
        late = ordered.allreduce(tf.constant(1.0), name="a_late", priority=5)
        early = ordered.allreduce(tf.constant(1.0), name="z_early", priority=-1)
        deep = ordered.allreduce(late + 1.0, name="a_deep", priority=-9)
        # Among operations of one name, the numbers decide before everything else, such as the number of tensors.
        plain = [ordered.allreduce([tf.constant(1.0)] * (11 - i), name=f"plain_{i}") for i in (10, 9, 8)]
        chain = chain_of(session, [late, early, deep, plain])
    assert chain == ["z_early", "plain_8", "plain_9", "plain_10", "a_late", "a_deep"]


def test_numbers_of_the_same_value_in_other_parts_of_a_name_are_told_apart():
    with tf.Graph().as_default(), tf1.Session() as session:
        names = ["part/sum_1", "part_1/sum", "part_1/sum_1", "part_2/sum"]
        sums = [ordered.allreduce(tf.constant(1.0), name=name) for name in reversed(names)]
        assert chain_of(session, sums) == names


def test_what_is_pruned_is_no_part_of_the_order():
    with tf.Graph().as_default(), tf1.Session() as session:
        first, _, third = (ordered.allreduce(tf.constant(1.0), name=name) for name in "abc")
        assert chain_of(session, [first, third]) == ["a", "c"]


def test_a_dataset_that_communicates_is_refused_by_name():
    with tf.Graph().as_default(), tf1.Session() as session:
        dataset = tf.data.Dataset.range(3).map(ordered.allreduce, name="exchanging_map")
        iterator = tf1.data.make_initializable_iterator(dataset)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"MapDataset.*runs a function with LockstepAllReduce"):
            session.run(iterator.initializer)
