"""Pooled lookups in jobs: fused, not fused, and as plain TensorFlow on one process with the batches of all workers.

random_test.py does this with random programs.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.tables.dynamic import get_embedding_variable
from lockstep._src.tables.features.group_lookup import group_embedding_lookup_sparse
from lockstep.testing import call_workers

pytestmark = pytest.mark.workers

tf1 = tf.compat.v1
ROWS, DIM, EXAMPLES, STEPS = 30, 5, 7, 3
OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01),
}


# The largest number of ids of an example; the mean of the second is 30.
FEW, MANY = 5, 60


class Case(NamedTuple):
    """A training program: its table, its lookup and its optimizer."""

    kind: str
    combiner: str
    weighted: bool
    form: str
    optimizer: str
    most_ids: int


def _cases():
    """Yields cases in which each kind of table, combiner and form meets several optimizers and numbers of ids."""
    forms = itertools.product(
        ("static", "dynamic", "replicated"),
        ("sum", "mean", "sqrtn"),
        (False, True),
        ("sparse", "ragged", "safe", "group"),
    )
    others = zip(itertools.cycle([*OPTIMIZERS, "adagrad"]), itertools.cycle([FEW, FEW, MANY, FEW, FEW]), strict=False)
    for (kind, combiner, weighted, form), (optimizer, most_ids) in zip(forms, others, strict=False):
        # TensorFlow's safe lookup gives id 0 a gradient of zero for examples without ids. For a dynamic table this is a
        # key of its own, which fused lookups do not touch: with gradient descent and Adagrad this makes no difference.
        is_filled = kind == "dynamic" and form == "safe"
        yield Case(kind, combiner, weighted, form, "adagrad" if is_filled else optimizer, most_ids)


CASES = list(_cases())


def batch(step: int, rank: int, most_ids: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns lengths [EXAMPLES], ids and weights of a worker's batch; some examples have no ids, the last one has."""
    random = np.random.default_rng([step, rank])
    lengths = random.integers(0, most_ids + 1, EXAMPLES)
    lengths[random.integers(EXAMPLES - 1)], lengths[-1] = 0, 3
    count = lengths.sum()
    return lengths, random.integers(0, ROWS, count) // random.integers(1, 4), random.uniform(0.5, 2, count)


def values() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(ROWS, DIM)).astype(np.float32)


def pooled(table, case: Case, lengths, ids, weights) -> tf.Tensor:
    ids = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)
    weights = ids.with_values(weights) if case.weighted else None
    if case.form == "group":
        return group_embedding_lookup_sparse([table], [ids], [case.combiner], None if weights is None else [weights])[0]
    if case.form == "ragged":
        return tf.nn.embedding_lookup_sparse(table, ids, weights, combiner=case.combiner)
    ids, weights = ids.to_sparse(), None if weights is None else weights.to_sparse()
    if case.form == "safe":
        return tf.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner=case.combiner)
    return tf1.nn.embedding_lookup_sparse(table, ids, weights, combiner=case.combiner)


def train(make_table, case: Case, ranks, read, divisor: float):
    """Trains on the batches of `ranks`, in one step each; returns the rows, [ROWS, DIM]."""
    table = make_table()
    fed = [
        (
            tf1.placeholder(tf.int64, [None]),
            tf1.placeholder(tf.int64, [None]),
            tf1.placeholder(tf.float32, [None]),
        )
        for _ in ranks
    ]
    target = tf.constant(np.random.default_rng(6).normal(size=(EXAMPLES, DIM)), tf.float32)
    losses = [tf.reduce_mean(tf.square(pooled(table, case, *one) - target)) for one in fed]
    loss = tf.add_n(losses) / divisor
    train_op = OPTIMIZERS[case.optimizer]().minimize(loss)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for step in range(STEPS):
            feed = {}
            for rank, places in zip(ranks, fed, strict=True):
                feed.update(zip(places, batch(step, rank, case.most_ids), strict=True))
            session.run([loss, train_op], feed)
        return session.run(read(table))


def plain(case: Case, workers: int, is_sum: bool = False) -> np.ndarray:
    """Returns the rows after training in plain TensorFlow, on all batches; `is_sum`: by the sum of their losses."""
    case = case._replace(form="safe" if case.form == "safe" else "sparse")
    with tf.Graph().as_default():
        return train(
            lambda: tf1.get_variable("table", initializer=values()),
            case,
            range(workers),
            lambda table: table.read_value(),
            divisor=1 if is_sum else workers,
        )


def of_job(case: Case, **options) -> np.ndarray:
    """Returns the rows after training in the job, with options of its scope."""

    def make():
        if case.kind == "replicated":
            return tf1.get_variable("table", initializer=values())
        with embedding_scope():
            if case.kind == "static":
                return tf1.get_variable("table", initializer=values())
            return get_embedding_variable("table", DIM, initializer=values())

    def read(table):
        return tf.nn.embedding_lookup(table, tf.range(ROWS, dtype=tf.int64))

    with tf.Graph().as_default() as graph, scope(**options):
        rows = train(make, case, [context.rank], read, divisor=1)
    is_fused = "LockstepPool" in {op.type for op in graph.get_operations()}
    assert is_fused == options["fused_lookups"], case
    return rows


def compare(cases: list[Case]) -> None:
    context.ensure_initialized()
    for case in cases:
        fused, apart = of_job(case, fused_lookups=True), of_job(case, fused_lookups=False)
        np.testing.assert_allclose(fused, apart, rtol=1e-5, atol=1e-6, err_msg=f"{case}, fused and not")
        wanted = plain(case, context.world_size)
        np.testing.assert_allclose(fused, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{case}, plain TensorFlow")


# The letters are the workers' hosts. On two hosts, ids first travel inside the host.
JOBS = [
    pytest.param("a", CASES[::7], marks=pytest.mark.long),
    ("aa", CASES[::9]),
    pytest.param("aaa", CASES[::9], marks=pytest.mark.long),
    pytest.param("aab", CASES[1::9], marks=pytest.mark.newest_only),
    pytest.param("aa", CASES, marks=pytest.mark.long),
]


TWO_STAGES = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}


@pytest.mark.parametrize(("hosts", "cases"), JOBS, ids=["1", "2", "3", "on two hosts", "2, all"])
def test_training_equals_unfused_and_plain_tensorflow(hosts, cases):
    call_workers(compare, len(hosts), cases, hosts=hosts, environment=TWO_STAGES, timeout_s=400)


def compare_with_options() -> None:
    context.ensure_initialized()
    for number, kind in enumerate(("static", "dynamic", "replicated")):
        case = Case(kind, ("sum", "mean", "sqrtn")[number], kind != "dynamic", "ragged", "adagrad", MANY)
        summed = of_job(case, fused_lookups=True, embedding_gradient="sum")
        wanted = plain(case, context.world_size, is_sum=kind != "replicated")
        np.testing.assert_allclose(summed, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{case}, gradients are summed")
        exact = plain(case, context.world_size)
        for values_dtype, gradients_dtype in (("float16", "float32"), (None, "bfloat16"), ("bfloat16", "float16")):
            wire = {"comm_wire_dtype": values_dtype, "comm_gradient_wire_dtype": gradients_dtype}
            fused, apart = (of_job(case, fused_lookups=one, **wire) for one in (True, False))
            np.testing.assert_allclose(fused, apart, rtol=1e-2, atol=1e-2, err_msg=f"{case}, {wire}")
            np.testing.assert_allclose(fused, exact, rtol=2e-2, atol=2e-2, err_msg=f"{case}, {wire}")
            # Something was rounded: without the option, results are closer.
            is_exchanged = kind != "replicated" or gradients_dtype != "float32"
            assert np.abs(fused - exact).max() > 1e-5 or not is_exchanged, f"{case}, {wire}"


@pytest.mark.parametrize("hosts", ["aa", pytest.param("aabb", marks=pytest.mark.long)])
def test_wire_types_and_summed_gradients(hosts):
    call_workers(compare_with_options, len(hosts), hosts=hosts, environment=TWO_STAGES, timeout_s=200)
