"""Programs that change gradients between their computation and the update, in a scope and in plain TensorFlow.

`plain` runs a program in one process, with the batches of all workers and gradients in dense form; `in_scope` runs it
on each worker.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

import hybridbackend.tensorflow as hb
import sparse_operation_kit as sok
from lockstep._src.tables.dynamic import get_embedding_variable

tf1 = tf.compat.v1
DIM, EXAMPLES, STEPS = 3, 12, 2
# "small" has fewer rows than a scope of several workers shards; "looked up" is in no embedding_scope.
ROWS = {"static": 11, "small": 2, "looked up": 7, "dynamic": 9, "sok": 10}
KINDS = tuple(ROWS)
WEIGHT = np.random.default_rng(1).normal(size=[DIM, 2]).astype(np.float32)


def _start(kind):
    return np.random.default_rng(list(ROWS).index(kind)).normal(scale=0.3, size=[ROWS[kind], DIM]).astype(np.float32)


def _ids(kind, step):
    """Returns ids of all workers' examples, [EXAMPLES] and [EXAMPLES, 2]; few rows occur often."""
    rng = np.random.default_rng([7, step])
    return rng.zipf(1.5, EXAMPLES) % ROWS[kind], rng.zipf(1.5, [EXAMPLES, 2]) % ROWS[kind]


def _share(array, rank, world):
    return array[rank * EXAMPLES // world : (rank + 1) * EXAMPLES // world]


def _make(kind):
    if kind == "looked up":
        return tf1.get_variable("table", initializer=_start(kind))
    if kind == "sok":
        return sok.Variable(_start(kind), name="table")
    with hb.embedding_scope():
        if kind == "dynamic":
            return get_embedding_variable("table", DIM, initializer=_start(kind))
        return tf1.get_variable("table", initializer=_start(kind))


class _PlainLookups:
    """The lookups of a table by operations of TensorFlow that have second gradients."""

    def __init__(self, table):
        self.table = table

    def rows(self, ids):
        return tf.nn.embedding_lookup(self.table, ids)

    def pooled(self, ids):
        return tf.reduce_sum(self.rows(ids), 1)


class _Lookups:
    """The lookups of a table by the functions under test: TensorFlow's or SOK's."""

    def __init__(self, table, is_of_sok):
        self.table, self._is_of_sok = table, is_of_sok

    def rows(self, ids):
        if self._is_of_sok:
            return sok.all2all_dense_embedding(self.table, ids)
        return tf.nn.embedding_lookup(self.table, ids)

    def pooled(self, ids):
        ids = tf.RaggedTensor.from_tensor(ids)
        if self._is_of_sok:
            return sok.lookup_sparse(self.table, ids, combiners="sum")
        return tf.nn.embedding_lookup_sparse(self.table, ids, None, combiner="sum")


def _on_values(function, gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def _each(function):
    return lambda gradients: [function(g) for g in gradients]


_limited = functools.partial(_on_values, lambda values: tf.clip_by_value(values, -0.05, 0.05))
_bent = functools.partial(_on_values, lambda values: 2.0 * tf.tanh(values))


def _by_norm_in_a_branch(gradients):
    norm = tf.linalg.global_norm(gradients)

    def clipped(values):
        return tf.cond(norm > 0.3, lambda: values * 0.3 / norm, lambda: values)

    return [_on_values(clipped, g) for g in gradients]


# The changes that a program makes to a list of gradients.
CHANGES = {
    "nothing": lambda gradients: gradients,
    "clip_by_value": _each(_limited),
    "a function": _each(_bent),
    "clip_by_norm": _each(lambda g: tf.clip_by_norm(g, 0.1)),
    "clip_by_global_norm": lambda gradients: tf.clip_by_global_norm(gradients, 0.3)[0],
    "a function, then clip_by_global_norm": lambda gradients: tf.clip_by_global_norm(_each(_bent)(gradients), 0.3)[0],
    "global_norm in a branch": _by_norm_in_a_branch,
}
# These make the gradient of a table dense.
DENSE_CHANGES = {
    "clip_by_average_norm": _each(lambda g: tf1.clip_by_average_norm(g, 0.02)),
    "clip_by_norm of columns": _each(lambda g: tf.clip_by_norm(tf.convert_to_tensor(g), 0.1, axes=[0])),
}
# How a program gets to the gradients.
WAYS = (
    "plain",
    "regularized",
    "in a loop",
    "accumulated",
    "penalty",
    "tf.gradients",
    "in a function",
    "in a function, dense",
)


def cases(kind):
    """Returns the pairs of a way and a change that a kind of table is tried with."""
    found = [("plain", change) for change in CHANGES] + [("penalty", "nothing")]
    if kind == "dynamic":  # its gradient has no dense form
        return found
    found += [("plain", change) for change in DENSE_CHANGES]
    if kind in ("static", "small", "sok"):
        found += [("accumulated", "clip_by_global_norm"), ("accumulated", "clip_by_norm")]
    if kind in ("static", "small"):
        found += [
            (way, change) for way in ("regularized", "in a loop") for change in ("clip_by_global_norm", "clip_by_norm")
        ]
    # Gradients of replicated variables are this worker's own there, and exchanged when they are applied.
    if kind == "static":
        found += [(way, "clip_by_norm") for way in WAYS if way.startswith("in a function")]
    return found + ([("tf.gradients", "clip_by_value")] if kind in ("static", "sok") else [])


class _Training:
    """A training program.

    Args:
      kind: the kind of the table.
      lookups: its lookups.
      weight: a replicated variable.
      seen: makes of a gradient what is changed: in plain TensorFlow the dense form, in which a row has one sum.
    """

    def __init__(self, kind, lookups, weight, seen):
        self._kind, self._lookups, self._weight, self._seen = kind, lookups, weight, seen
        self._variables = [lookups.table, weight]
        self._optimizer = tf1.train.GradientDescentOptimizer(0.05)
        self.fed = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.int64, [None, 2])

    def loss(self, way):
        """Returns a mean over examples; a lookup of single ids and two pooled ones share the table."""
        single, several = self.fed
        rows = self._lookups.pooled(several) + 0.5 * self._lookups.pooled(several[:, ::-1])
        rows += self._lookups.rows(single)
        loss = tf.reduce_mean(tf.reduce_sum(tf.square(tf.matmul(rows, self._weight) - 1.0), 1))
        if way == "regularized":
            loss += 0.05 * tf.nn.l2_loss(self._lookups.table)
        if way == "in a loop":
            loss += tf.while_loop(
                lambda i, _: i < 2,
                lambda i, total: (i + 1, total + tf.reduce_mean(self._lookups.rows(several[:, i]))),
                [0, 0.0],
            )[1]
        return loss

    def steps(self, way, change):
        """Returns the operations of a step, which a session runs one after the other."""
        if way in ("tf.gradients", "in a function", "in a function, dense"):
            gradients = self._own_gradients(way)
            return [self._apply([{**CHANGES}[change]([self._seen(gradients[0])])[0], gradients[1]])]
        loss = self.loss(way)
        gradients = [self._seen(g) for g, _ in self._optimizer.compute_gradients(loss, self._variables)]
        if way == "accumulated":
            return self._accumulated(gradients, CHANGES[change])
        if way == "penalty":
            squares = [tf.reduce_sum(tf.square(g.values if isinstance(g, tf.IndexedSlices) else g)) for g in gradients]
            second = tf.gradients(tf.add_n(squares), self._variables)
            scaled = [_on_values(lambda v: 0.0001 * v, g) for g in second]
            return [self._apply(gradients), self._apply(scaled)]
        return [self._apply({**CHANGES, **DENSE_CHANGES}[change](gradients))]

    def _own_gradients(self, way):
        """Returns the gradients of table and weight without an optimizer; the weight's one is this worker's own."""

        def compute():
            of_table, of_weight = tf.gradients(self.loss(way), self._variables)
            return (tf.convert_to_tensor(of_table) if way.endswith("dense") else of_table), of_weight

        return compute() if way == "tf.gradients" else tf.function(compute, autograph=False)()

    def _apply(self, gradients):
        return self._optimizer.apply_gradients(zip(gradients, self._variables, strict=True))

    def _accumulated(self, gradients, change):
        """Sums dense gradients of two passes in variables of the program, and changes the sums."""
        add, clear, sums = [], [], []
        for gradient in map(tf.convert_to_tensor, gradients):
            total = tf1.Variable(
                np.zeros(gradient.shape, np.float32), trainable=False, use_resource=True,
                collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            )  # fmt: skip
            add.append(total.assign_add(gradient, read_value=False))
            clear.append(total.assign(tf.zeros_like(gradient), read_value=False))
            sums.append(total)
        step = self._apply(change([total.read_value() for total in sums]))
        return [tf.group(*add), tf.group(*add), step, tf.group(*clear)]

    def run(self, way, change, read, rank, world):
        """Returns table and weight after some steps on a worker's share of the examples."""
        steps, whole = self.steps(way, change), read(self._lookups.table)
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            for number in range(STEPS):
                ids = [_share(part, rank, world) for part in _ids(self._kind, number)]
                for step in steps:
                    session.run(step, dict(zip(self.fed, ids, strict=True)))
            return session.run([whole, self._weight])


def plain(kind):
    """Returns for each case table and weight after some steps of plain TensorFlow, on the examples of all workers."""
    results = {}
    for case in cases(kind):
        with tf.Graph().as_default():
            table = tf1.get_variable("table", initializer=_start(kind), use_resource=True)
            weight = tf1.get_variable("weight", initializer=WEIGHT)
            training = _Training(kind, _PlainLookups(table), weight, tf.convert_to_tensor)
            results[case] = training.run(*case, lambda table: table.read_value(), 0, 1)
    return results


def in_scope(kind):
    """Returns for each case table and weight after some steps of this job."""
    results = {}
    if kind == "sok":
        sok.init()
    everything = tf.range(ROWS[kind], dtype=tf.int64).numpy()
    for case in cases(kind):
        with tf.Graph().as_default(), hb.scope():
            lookups = _Lookups(_make(kind), kind == "sok")
            weight = tf1.get_variable("weight", initializer=WEIGHT)
            training = _Training(kind, lookups, weight, lambda gradient: gradient)
            context = hb.context
            results[case] = training.run(
                *case, lambda _, lookups=lookups: lookups.rows(everything), context.rank, context.world_size
            )
    return results
