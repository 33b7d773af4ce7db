"""Random training programs of Keras: their descriptions, and the models, in a job and in plain Keras.

A program has tables, features that are looked up in them, a small dense part, and an optimizer with its options for
gradients. It trains with `fit`, or by a loop of its own. Combinations that the pages name as exceptions are not drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.parity.random_programs import Printed, replaced

tf1 = tf.compat.v1
BATCH = 4
# Gradients that are only rounding errors must stay small, so the epsilons are large.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"learning_rate": 0.2}),
    "Momentum": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}),
    "Adagrad": ("Adagrad", {"learning_rate": 0.3}),
    "Adam": ("Adam", {"learning_rate": 0.02, "epsilon": 1e-2}),
    "FTRL": ("Ftrl", {"learning_rate": 0.2, "l2_regularization_strength": 0.001}),
    "RMSProp": ("RMSprop", {"learning_rate": 0.02, "momentum": 0.5, "epsilon": 1e-2}),
}
CLIPPING = {"": {}, "clipnorm": {"clipnorm": 0.05}, "global": {"global_clipnorm": 0.1}, "value": {"clipvalue": 0.01}}
LOSSES = ("sum_over_batch_size", "mean_with_sample_weight")


@dataclasses.dataclass(frozen=True, repr=False)
class KerasTable(Printed):
    """A table.

    Attributes:
      kind: static, replicated (made outside of embedding_scope) or dynamic.
      rows: the number of rows.
      dim: the width.
      regularizer: whether its rows have an L2 regularizer.
    """

    kind: str = "static"
    rows: int = 5
    dim: int = 2
    regularizer: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Feature(Printed):
    """A feature: ids of each example.

    Attributes:
      table: the number of the table.
      length: the number of ids of an example; 0 for ids of rank 1.
      pooling: flatten, mean, or stack: rows of the example's ids are taken on another axis.
    """

    table: int = 0
    length: int = 0
    pooling: str = "flatten"


@dataclasses.dataclass(frozen=True, repr=False)
class KerasProgram(Printed):
    """A program of Keras; its printed form is Python that makes it again."""

    tables: tuple[KerasTable, ...] = (KerasTable(),)
    features: tuple[Feature, ...] = (Feature(),)
    optimizer: str = "SGD"
    clipping: str = ""
    accumulation: int = 1
    loss_scale: bool = False
    loss: str = LOSSES[0]
    sample_weight: bool = False
    loop: str = "fit"
    steps: int = 2
    seed: int = 0


@st.composite
def programs(draw: Any) -> KerasProgram:
    """Draws a program."""
    tables = tuple(
        KerasTable(
            kind=draw(st.sampled_from(("static", "static", "replicated", "dynamic"))),
            rows=draw(st.sampled_from((1, 2, 4, 7, 13))),
            dim=draw(st.sampled_from((1, 2, 3))),
            regularizer=draw(st.integers(0, 3)) == 0,
        )
        for _ in range(draw(st.integers(1, 2)))
    )
    features = tuple(
        Feature(i, draw(st.sampled_from((0, 1, 3))), draw(st.sampled_from(("flatten", "mean", "stack"))))
        for i in range(len(tables))
        for _ in range(draw(st.integers(1, 2)))
    )
    program = KerasProgram(
        tables=tables,
        features=features,
        optimizer=draw(st.sampled_from(tuple(OPTIMIZERS))),
        clipping=draw(st.sampled_from(tuple(CLIPPING))),
        accumulation=draw(st.sampled_from((1, 1, 2))),
        loss_scale=draw(st.integers(0, 4)) == 0,
        loss=draw(st.sampled_from((LOSSES[0], *LOSSES))),
        sample_weight=draw(st.booleans()),
        loop=draw(st.sampled_from(("fit", "fit", "steps_per_execution", "custom"))),
        steps=draw(st.sampled_from((2, 4))),
        seed=draw(st.integers(0, 999)),
    )
    hypothesis.assume(is_promised(program))
    return program


def is_promised(program: KerasProgram) -> bool:
    """Returns whether the pages promise that a program trains as in plain Keras."""
    has_dynamic = any(table.kind == "dynamic" for table in program.tables)
    if has_dynamic and any(t.regularizer for t in program.tables if t.kind == "dynamic"):
        return False  # a dynamic table has no value as a whole (docs/embedding.md, "Not supported")
    if has_dynamic and program.accumulation > 1:
        return False  # the same place
    if has_dynamic and program.optimizer == "FTRL":
        return (
            False  # FTRL changes rows without a gradient, of which a dynamic table has none before their first lookup
        )
    # In a loop of a program's own, batches count alike, and a loss is this worker's (docs/custom_loops.md): its mean
    # must be over rows.
    is_mean_over_rows = program.loss == LOSSES[0] or not program.sample_weight
    if program.loop == "custom" and not is_mean_over_rows:
        return False
    # A loop of a program's own would have to scale the loss by itself.
    return not (program.loop == "custom" and program.loss_scale)


def share(program: KerasProgram, rank: int, workers: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns a worker's ids, labels and weights of all steps."""
    rows = program.steps * BATCH * workers
    random = np.random.default_rng(program.seed)
    ids = {
        f"ids{i}": random.integers(0, program.tables[f.table].rows, [rows, f.length] if f.length else [rows])
        for i, f in enumerate(program.features)
    }
    label = random.integers(0, 2, [rows, 1]).astype(np.float32)
    weight = random.uniform(0.2, 3.0, rows).astype(np.float32)
    mine = np.arange(rows).reshape(program.steps, workers, BATCH)[:, rank].ravel()
    return {name: value[mine] for name, value in ids.items()}, label[mine], weight[mine]


def _layer(table: KerasTable, number: int, embedding_scope: Callable[[], Any], is_job: bool) -> Any:
    import keras

    if table.kind == "dynamic" and is_job:
        from lockstep.keras import DynamicEmbedding

        return DynamicEmbedding(table.dim, keras.initializers.Constant(0.3 + number))
    start = keras.initializers.RandomUniform(-0.8, 0.8, seed=10 + number)
    if table.kind == "dynamic":
        start = keras.initializers.Constant(0.3 + number)
    layer = keras.layers.Embedding(
        table.rows,
        table.dim,
        embeddings_initializer=start,
        embeddings_regularizer=keras.regularizers.L2(0.05) if table.regularizer else None,
    )
    with embedding_scope() if table.kind == "static" else contextlib.nullcontext():
        layer.build()
    return layer


def _model(program: KerasProgram, embedding_scope: Callable[[], Any], is_job: bool) -> tuple[Any, list[Any]]:
    """Returns the model and the layers of the tables."""
    import keras

    layers = [_layer(table, i, embedding_scope, is_job) for i, table in enumerate(program.tables)]
    inputs, found = {}, []
    for i, feature in enumerate(program.features):
        shape = [feature.length] if feature.length else []
        inputs[f"ids{i}"] = keras.Input(shape, name=f"ids{i}", dtype="int64")
        rows = layers[feature.table](inputs[f"ids{i}"])
        if feature.pooling == "mean" and feature.length:
            rows = keras.layers.GlobalAveragePooling1D()(rows)
        elif feature.pooling == "stack":
            rows = keras.ops.stack([rows, keras.ops.flip(rows, -1)], axis=1)
            rows = keras.ops.take(rows, [1, 0, 1], axis=1)
        found.append(keras.layers.Flatten()(rows))

    def start(seed: int) -> Any:
        return keras.initializers.RandomUniform(-0.8, 0.8, seed=seed)

    hidden = keras.layers.Dense(3, "tanh", kernel_initializer=start(1))(keras.layers.Concatenate()([*found, found[0]]))
    return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=start(2))(hidden)), layers


def _optimizer(program: KerasProgram, is_job: bool) -> Any:
    import keras

    name, options = OPTIMIZERS[program.optimizer]
    if program.accumulation > 1:
        options = {**options, "gradient_accumulation_steps": program.accumulation}
    optimizer = getattr(keras.optimizers, name)(**options, **CLIPPING[program.clipping])
    if program.loss_scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0, dynamic_growth_steps=2)
    if not is_job:
        # In a scope the slices of a row are summed first (docs/promises.md, "Where one worker and many differ").
        apply = optimizer.apply
        optimizer.apply = lambda grads, variables=None: apply([tf.convert_to_tensor(g) for g in grads], variables)
    return optimizer


def _train(program: KerasProgram, model: Any, optimizer: Any, data: Any, batch: int) -> None:
    import keras

    ids, label, weight = data
    given = weight if program.sample_weight else None
    loss = keras.losses.MeanSquaredError(reduction=program.loss)
    if program.loop != "custom":
        steps = 2 if program.loop == "steps_per_execution" else 1
        model.compile(optimizer, loss, steps_per_execution=steps)
        model.fit(ids, label, sample_weight=given, batch_size=batch, shuffle=False, verbose=0)
        return

    @tf.function
    def step(ids: Any, label: Any, weight: Any) -> None:
        with tf.GradientTape() as tape:
            scores = model(ids, training=True)
            value = loss(label, scores, weight if program.sample_weight else None) + sum(model.losses)
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)

    for i in range(program.steps):
        part = slice(i * batch, (i + 1) * batch)
        step({k: tf.constant(v[part]) for k, v in ids.items()}, tf.constant(label[part]), tf.constant(weight[part]))


def _values(program: KerasProgram, model: Any, layers: list[Any]) -> dict[str, np.ndarray]:
    values = {
        f"table{i}": layer(tf.range(table.rows, dtype=tf.int64)).numpy()
        for i, (layer, table) in enumerate(zip(layers, program.tables, strict=True))
    }
    dense = [v for layer in model.layers if layer not in layers for v in layer.trainable_variables]
    return {**values, **{f"dense{i}": v.numpy() for i, v in enumerate(dense)}}


def trained(program: KerasProgram) -> dict[str, np.ndarray]:
    """Trains as a worker; returns the final values, of tables all rows."""
    import lockstep

    rank, workers = lockstep.context.rank, lockstep.context.world_size
    with lockstep.scope():
        model, layers = _model(program, lockstep.embedding_scope, is_job=True)
        _train(program, model, _optimizer(program, True), share(program, rank, workers), BATCH)
        return _values(program, model, layers)


def plain(program: KerasProgram, workers: int) -> dict[str, np.ndarray]:
    """Returns the final values of plain Keras on the rows of all workers."""
    parts = [share(program, rank, workers) for rank in range(workers)]
    order = np.arange(program.steps * BATCH * workers).reshape(workers, program.steps, BATCH).swapaxes(0, 1).ravel()
    ids = {name: np.concatenate([part[0][name] for part in parts])[order] for name in parts[0][0]}
    label, weight = (np.concatenate([part[i] for part in parts])[order] for i in (1, 2))
    model, layers = _model(program, contextlib.nullcontext, is_job=False)
    _train(program, model, _optimizer(program, False), (ids, label, weight), BATCH * workers)
    return _values(program, model, layers)


def smaller(program: KerasProgram) -> Iterator[KerasProgram]:
    """Yields programs that are simpler in one respect."""
    for i in range(len(program.features)):
        if len(program.features) > 1:
            yield _without_unused(replaced(program, features=program.features[:i] + program.features[i + 1 :]))
    for field in ("clipping", "accumulation", "loss_scale", "loss", "sample_weight", "loop", "optimizer", "steps"):
        if getattr(program, field) != getattr(KerasProgram(), field):
            yield replaced(program, **{field: getattr(KerasProgram(), field)})
    for name, simplest in (
        ("features", {"length": 0, "pooling": "flatten"}),
        ("tables", dataclasses.asdict(KerasTable())),
    ):
        for i, one in enumerate(getattr(program, name)):
            for field, value in simplest.items():
                if getattr(one, field) != value:
                    several = list(getattr(program, name))
                    several[i] = replaced(one, **{field: value})
                    yield replaced(program, **{name: tuple(several)})


def _without_unused(program: KerasProgram) -> KerasProgram:
    """Returns a program without the tables that no feature uses."""
    used = sorted({feature.table for feature in program.features})
    features = tuple(replaced(feature, table=used.index(feature.table)) for feature in program.features)
    return replaced(program, tables=tuple(program.tables[i] for i in used), features=features)
