"""Builds and trains the programs of `random_programs.py`: as a worker of a job, and in plain TensorFlow.

The same code builds both. The plain program trains on the rows of all workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.parity.random_programs import ROWS, SOK, Lookup, Program, Table, Tower

tf1 = tf.compat.v1
BATCH, LABELS = 4, 2
# The shape of an example's ids, by the rank of all ids. Pooled lookups have rank 2.
COLUMNS = {1: (), 2: (3,), 3: (2, 2)}
CONSTANT = {0: (), 1: (3,), 2: (2, 3), 3: (2, 1, 2)}
# Gradients that are only rounding errors must stay small, so the epsilons are large.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: tf1.train.GradientDescentOptimizer(0.5),
    "Momentum": lambda: tf1.train.MomentumOptimizer(0.2, 0.9),
    "Adagrad": lambda: tf1.train.AdagradOptimizer(0.3),
    "Adam": lambda: tf1.train.AdamOptimizer(0.02, epsilon=1e-2),
    "FTRL": lambda: tf1.train.FtrlOptimizer(0.3, l2_regularization_strength=0.001),
    "RMSProp": lambda: tf1.train.RMSPropOptimizer(0.02, momentum=0.5, epsilon=1e-2),
}


# --- data


def share(program: Program, rank: int) -> dict[str, np.ndarray]:
    """Returns a worker's rows. Ids [rows, ...] of pooled lookups are -1 where an example has fewer, or none."""
    rows = program.shares[rank]
    random = np.random.default_rng([program.seed, rank])
    data = {"label": random.integers(0, 2, [rows, LABELS]).astype(np.float32)}
    for name, lookup in _named(program):
        if lookup.constant:
            continue
        shape = [rows, *COLUMNS[lookup.rank]]
        ids = random.integers(0, program.tables[lookup.table].rows, shape)
        if lookup.form not in ROWS:
            ids[random.random(shape) < 0.4] = -1
        data[name] = ids.astype(lookup.ids)
        if lookup.weighted:
            weights = random.uniform(0.5, 2.0, shape)
            if lookup.form.startswith("safe"):
                weights[random.random(shape) < 0.2] = 0.0
            data[f"{name}_weight"] = weights.astype(np.float32)
    return data


def batches(program: Program, workers: int) -> list[dict[str, np.ndarray]]:
    """Returns the rows of each step, from all workers."""
    shares = [share(program, rank) for rank in range(workers)]
    steps = min(program.steps, max(-(-rows // BATCH) for rows in program.shares[:workers]))
    return [
        {key: np.concatenate([s[key][i * BATCH : (i + 1) * BATCH] for s in shares]) for key in shares[0]}
        for i in range(steps)
    ]


def _named(program: Program) -> list[tuple[str, Lookup]]:
    return [(f"ids{i}_{j}", x) for i, tower in enumerate(program.towers) for j, x in enumerate(tower.lookups)]


def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the initial value of a variable."""
    return np.random.default_rng(sum(map(ord, name))).uniform(-0.8, 0.8, shape).astype(np.float32)


# --- the model


def plain_table(name: str, table: Table) -> Any:
    """Creates the table of a plain program."""
    return tf1.get_variable(name, initializer=initial(name, (table.rows, table.dim)), use_resource=True)


def _looked_up(name: str, lookup: Lookup, table: Any, of: Table, features: dict[str, Any], is_sok: bool) -> Any:
    if lookup.constant:
        drawn_ids = np.random.default_rng(sum(map(ord, name))).integers(0, of.rows, CONSTANT[lookup.rank])
        ids = tf.constant(drawn_ids, lookup.ids)
    else:
        ids = features[name]
    if lookup.form == "loop":
        look_up = functools.partial(tf.nn.embedding_lookup, table)
        return tf.transpose(tf.map_fn(look_up, tf.transpose(ids), fn_output_signature=tf.float32), [1, 0, 2])
    if lookup.form in ROWS:
        if is_sok:
            import sparse_operation_kit as sok

            return sok.all2all_dense_embedding(table, ids)
        return tf.nn.embedding_lookup(table, ids) if lookup.form == "rows" else tf.gather(table, ids)
    examples = tf.shape(ids)[0]
    weights = features.get(f"{name}_weight")
    places = tf.where(ids >= 0)
    values = tf.gather_nd(ids, places)
    of_weights = None if weights is None else tf.gather_nd(weights, places)
    if "ragged" in lookup.form:
        lengths = tf.reduce_sum(tf.cast(ids >= 0, tf.int64), 1)
        given = tf.RaggedTensor.from_row_lengths(values, lengths)
    else:
        given = tf.SparseTensor(places, values, tf.shape(ids, out_type=tf.int64))
    of_weights = None if of_weights is None else given.with_values(of_weights)
    if is_sok:
        import sparse_operation_kit as sok

        found = sok.lookup_sparse(table, given, of_weights, lookup.combiner)
    else:
        pool = tf.nn.safe_embedding_lookup_sparse if lookup.form.startswith("safe") else tf.nn.embedding_lookup_sparse
        found = pool(table, given, of_weights, combiner=lookup.combiner)
    # TensorFlow leaves out examples behind the last one that has ids.
    return tf.ensure_shape(tf.pad(found, [[0, examples - tf.shape(found)[0]], [0, 0]]), [None, of.dim])


def _tower(number: int, tower: Tower, found: list[Any]) -> Any:
    """Returns a value of each example, or a scalar, of the rows that a tower has looked up."""
    first_axis = 0 if tower.lookups[0].constant else 1
    x = found[0]
    if tower.join:
        x = (tf.stack if tower.join == "stack" else tf.concat)(found, axis=tower.axis + first_axis)
    axis = tower.then_axis + first_axis
    size = x.shape[axis]
    if tower.then == "gather":
        x = tf.gather(x, [size - 1, 0], axis=axis)
    elif tower.then == "slice":
        x = tf.gather(x, tf.range(size // 2, size), axis=axis)
        x = tf.ensure_shape(x, x.shape)
    elif tower.then == "transpose":
        order = list(range(len(x.shape)))
        x = tf.transpose(x, order[:first_axis] + order[first_axis:][::-1])
    elif tower.then == "unstack":
        x = tf.add_n([part * (i + 1.0) for i, part in enumerate(tf.unstack(x, axis=axis))])
    inner = [int(n) for n in x.shape[first_axis:]]
    factors = np.random.default_rng(number).uniform(0.5, 1.5, inner).astype(np.float32)
    return tf.reduce_sum(tf.sin(x) * factors, axis=list(range(first_axis, len(x.shape))))


def _losses(program: Program, tables: list[Any], features: dict[str, Any], is_job: bool) -> tuple[Any, ...]:
    """Returns the losses of all examples [B] of each task, the dense variables, and all looked-up rows by example."""
    towers, by_example = [], []
    for i, tower in enumerate(program.towers):
        found = []
        for j, lookup in enumerate(tower.lookups):
            of = program.tables[lookup.table]
            is_sok = is_job and of.kind in SOK
            found.append(_looked_up(f"ids{i}_{j}", lookup, tables[lookup.table], of, features, is_sok))
        by_example += [] if tower.lookups[0].constant else found
        towers.append(_tower(i, tower, found) + tf.zeros_like(features["label"][:, 0]))
    kernel = tf1.get_variable("hidden_kernel", initializer=initial("hidden", (len(towers), 3)), use_resource=True)
    bias = tf1.get_variable("hidden_bias", initializer=initial("bias", (3,)), use_resource=True)
    out = tf1.get_variable("out_kernel", initializer=initial("out", (3, LABELS)), use_resource=True)
    logits = tf.matmul(tf.tanh(tf.matmul(tf.stack(towers, 1), kernel) + bias), out)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=features["label"], logits=logits)
    return tf.unstack(losses, axis=1), [kernel, bias, out], by_example


def _gradients(program: Program, optimizer: Any, tables: list[Any], made: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Returns pairs of a gradient and its variable; the gradients have not been clipped."""
    tasks, dense, by_example = made
    variables = [*tables, *dense]
    loss = tf.add_n([tf.reduce_mean(task) for task in tasks])

    def gradients(loss: Any, of: list[Any] = variables) -> list[Any]:
        if program.gradients == "tf.gradients":
            return tf1.gradients(loss, of)
        return [gradient for gradient, _ in optimizer.compute_gradients(loss, of)]

    if program.loss == "l2":
        kinds = zip(tables, program.tables, strict=True)
        loss += 0.05 * tf.add_n([tf.nn.l2_loss(t) for t, of in kinds if of.kind in ("static", "replicated")])
    elif program.loss == "row penalty" and by_example:
        of_rows = [tf.reshape(g, [tf.shape(g)[0], -1]) for g in tf1.gradients(tf.add_n(tasks), by_example)]
        loss += tf.reduce_mean(tf.reduce_sum(tf.square(tf.concat(of_rows, 1)), 1))
    elif program.loss == "penalty":
        loss += tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients(loss, dense)])
    elif program.loss == "second order":
        squared = tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients(loss, dense)])
        # Dense gradients of tf.gradients are each worker's own until they are applied (docs/design.md).
        plainly = program.gradients == "plain"
        of_dense = tf1.gradients(squared, dense) if plainly else gradients(squared, dense)
        return list(zip([*gradients(loss, tables), *of_dense], variables, strict=True))
    elif program.loss == "two tasks":
        of_tasks = [gradients(tf.reduce_mean(task)) for task in tasks]
        return [(_added(*each), v) for each, v in zip(zip(*of_tasks, strict=True), variables, strict=True)]
    return list(zip(gradients(loss), variables, strict=True))


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        joined = [tf.concat(parts, 0) for parts in ((one.values, other.values), (one.indices, other.indices))]
        return tf.IndexedSlices(*joined, one.dense_shape)
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def summed_by_row(gradient: Any) -> Any:
    """Returns a gradient in which each row has one slice, as in a scope on any number of workers."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, position = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, position, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _treated(how: str, gradients: list[Any]) -> list[Any]:
    def each(function: Callable[[Any], Any]) -> list[Any]:
        return [
            tf.IndexedSlices(function(g.values), g.indices, g.dense_shape)
            if isinstance(g, tf.IndexedSlices)
            else function(g)
            for g in gradients
        ]

    if how == "clip_by_norm":
        return [tf.clip_by_norm(g, 0.02) for g in gradients]
    if how == "clip_by_value":
        return each(lambda g: tf.clip_by_value(g, -0.01, 0.015))
    if how == "clip_by_global_norm":
        return tf.clip_by_global_norm(gradients, 0.03)[0]
    if how == "global_norm":
        norm = tf.linalg.global_norm(gradients)
        return each(lambda g: g / (0.1 + norm))
    if how == "tanh":
        return each(lambda g: tf.tanh(30.0 * g) / 30.0)
    return gradients


def build(
    program: Program,
    features: dict[str, Any],
    make_table: Callable[[str, Table], Any] = plain_table,
    wrap: Callable[[Any], Any] = lambda optimizer: optimizer,
    is_job: bool = False,
) -> tuple[Any, list[Any], list[Any]]:
    """Builds a program's graph.

    Args:
      program: the program.
      features: a batch.
      make_table: creates a table.
      wrap: returns the optimizer that applies gradients.
      is_job: whether this is a worker of a job.

    Returns:
      The operation that trains, the tables, and the dense variables.
    """
    tables = [make_table(f"table{i}", table) for i, table in enumerate(program.tables)]
    made = _losses(program, tables, features, is_job)
    optimizer = OPTIMIZERS[program.optimizer]()
    pairs = [(g, v) for g, v in _gradients(program, optimizer, tables, made) if g is not None]
    gradients = [g if is_job else summed_by_row(g) for g, _ in pairs]
    if program.loss == "two tasks":
        # A program that adds slices by itself has to sum them by row before it clips them.
        gradients = [summed_by_row(g) for g in gradients]
    treated = _treated(program.gradients, gradients)
    train_op = wrap(optimizer).apply_gradients(zip(treated, [v for _, v in pairs], strict=True))
    return train_op, tables, made[1]


def plain(program: Program, workers: int) -> dict[str, np.ndarray]:
    """Returns the final values of plain TensorFlow on the rows of all workers."""
    with tf.Graph().as_default(), tf1.Session() as session:
        steps = batches(program, workers)
        features = {k: tf1.placeholder(v.dtype, [None, *v.shape[1:]]) for k, v in steps[0].items()}
        train_op, tables, dense = build(program, features)
        session.run(tf1.global_variables_initializer())
        for step in steps:
            session.run(train_op, {features[k]: v for k, v in step.items()})
        return session.run({v.op.name: v for v in [*tables, *dense]})


# --- a worker of a job


def _job_table(name: str, table: Table) -> Any:
    """Creates a table inside of a scope."""
    import hybridbackend.tensorflow as hb
    import sparse_operation_kit as sok
    from lockstep.embedding import get_embedding_variable

    value = initial(name, (table.rows, table.dim))
    if table.kind == "sok dynamic":
        return sok.DynamicVariable(dimension=table.dim, initializer=value, var_type="hybrid", name=name)
    if table.kind in SOK:
        mode = f"localized:{(table.rows + 1) % hb.context.world_size}" if table.kind == "sok localized" else None
        return sok.Variable(value, mode=mode, name=name)
    if table.kind == "replicated":
        return plain_table(name, table)
    with hb.embedding_scope():
        if table.kind == "dynamic":
            return get_embedding_variable(name, table.dim, initializer=value)
        return plain_table(name, table)


def trained(program: Program) -> dict[str, np.ndarray]:
    """Trains as a worker; returns the final values, of tables all rows."""
    import hybridbackend.tensorflow as hb
    import sparse_operation_kit as sok

    rank, workers = hb.context.rank, hb.context.world_size
    uses_sok = any(table.kind in SOK for table in program.tables)
    if uses_sok:
        _start_sok()
    options = {"data_sync_drop_remainder": False, "placement": program.placement(workers)}
    with tf.Graph().as_default(), hb.scope(**options):
        mine = tf.data.Dataset.from_tensor_slices(share(program, rank)).batch(BATCH).take(program.steps)
        features = tf1.data.make_one_shot_iterator(mine).get_next()
        wrap = sok.OptimizerWrapper if uses_sok else (lambda optimizer: optimizer)
        train_op, tables, dense = build(program, features, _job_table, wrap, is_job=True)
        values = {f"table{i}": _whole(t, of) for i, (t, of) in enumerate(zip(tables, program.tables, strict=True))}
        values.update({v.op.name: v.read_value() for v in dense})
        final = _Final(values)
        with tf1.train.MonitoredTrainingSession("", hooks=[final]) as session:
            while not session.should_stop():
                session.run(train_op)
        return final.values


@functools.cache
def _start_sok() -> None:
    """Calls `sok.init`, which a process may do once."""
    import sparse_operation_kit as sok

    sok.init()


def _whole(table: Any, of: Table) -> Any:
    import sparse_operation_kit as sok

    ids = tf.range(of.rows, dtype=tf.int64)
    return sok.all2all_dense_embedding(table, ids) if of.kind in SOK else tf.nn.embedding_lookup(table, ids)


class _Final(tf1.train.SessionRunHook):
    """A hook that records the values of tensors at the end."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def end(self, session: Any) -> None:
        self.values = session.run(self.values)
