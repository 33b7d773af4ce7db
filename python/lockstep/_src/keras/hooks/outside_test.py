"""Models of Keras 3 that are made, or trained, outside of the scope; on two workers."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.scope import embedding_scope, scope
from lockstep.testing.workers import call_workers
from tests.multiprocess.on_each_worker import logged

pytestmark = pytest.mark.workers

if not getattr(tf.keras, "__version__", "2").startswith("3"):
    pytest.skip("the models are those of Keras 3", allow_module_level=True)

ROWS, BATCH = 32, 4


def model_of(seed, optimizer="adam"):
    keras = tf.keras
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4, "tanh"), keras.layers.BatchNormalization()])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def rows_of(rank, world):
    """Returns this worker's rows of each batch of `world * BATCH` rows."""
    x = np.random.default_rng(0).normal(size=[ROWS, 3]).astype(np.float32)
    x = x.reshape(-1, world, BATCH, 3)[:, rank].reshape(-1, 3)
    return x, x.sum(1, keepdims=True)


def plain(seed):
    """Returns the weights that plain Keras has after training on all rows."""
    model = model_of(seed)
    model.fit(*rows_of(0, 1), batch_size=2 * BATCH, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def advised():
    """Returns the lines about tables of models that were made in different places, each trained twice."""
    keras = tf.keras

    def table_of(rows):
        layers = [keras.layers.Embedding(rows, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([1], dtype="int64"), *layers])
        model.compile("adam", "mse")
        return model

    x, y = np.arange(8)[:, None] + 8 * context.rank, np.ones([8, 1])
    found = []
    with scope(), embedding_scope():
        inside = table_of(200_000)
    for model, makes, scopes in (
        (inside, None, embedding_scope),
        (table_of(3000), None, scope),
        (table_of(3000), None, embedding_scope),
        (None, lambda: table_of(200_000), scope),
    ):
        with logged("The table '") as lines, scopes():
            trained = model or makes()
            for _ in range(2):
                trained.fit(x, y, verbose=0)
        found.append(lines)
    return found


# Promise (keras.md): tables that are replicated because of the place where they are made are named.
def test_tables_that_are_replicated_because_of_their_place_are_named_once():
    (inside, small, before, large), others = call_workers(advised, 2, timeout_s=200)
    assert inside == small == [] and others == [[], [], [], []]
    assert len(before) == len(large) == 1
    assert "of 3000 rows was made before the scope, so embedding_scope() has no effect on it" in before[0]
    assert "of 200000 rows was made outside of embedding_scope()" in large[0]
    assert "Adam updates all of them in each step" in large[0] and "LazyAdam" in large[0]


def made_before(folder):
    """Trains models that were made before the scope, each worker's with a seed of its own: by `fit`, and by a loop."""
    del folder
    rank, world = context.rank, context.world_size
    x, y = rows_of(rank, world)
    found = []
    model = model_of(1 + rank)
    with scope():
        model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        found.append(model.get_weights())
    model = model_of(1 + rank, tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adam()))
    model.optimizer.build(model.trainable_variables)
    with scope():

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = model.optimizer.scale_loss(tf.reduce_mean(tf.square(model(x) - y)))
            model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        for batch in range(2):
            step(x[batch * BATCH :][:BATCH], y[batch * BATCH :][:BATCH])
        found.append([v.numpy() for v in model.trainable_variables])
    model = model_of(1 + rank)
    with scope():
        found.append(model.evaluate(x, y, batch_size=BATCH, verbose=0))
    return found


def made_inside(where):
    """Trains a model that was made inside of a scope; returns the warnings, the weights and the steps."""
    with scope():
        model = model_of(1)
        x, y = rows_of(context.rank, context.world_size)
    with logged("takes a step outside of lockstep.scope()") as said:
        for _ in range(2):
            with scope() if where == "inside" else contextlib.nullcontext():
                model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    return said, model.get_weights(), int(model.optimizer.iterations.numpy())


def table_inside(where):
    """Trains a model of which only the table was made in a scope; returns the warnings and the dense weights."""
    keras = tf.keras
    ids = np.random.default_rng(context.rank).integers(0, 50, [ROWS, 1])
    with logged("a gradient of a sharded or dynamic table") as said, contextlib.ExitStack() as stack:
        if where == "inside":
            stack.enter_context(scope())
        with embedding_scope():
            table = keras.layers.Embedding(50, 2)
            table.build()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([1], dtype="int64"), table, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ids, ids.astype("f"), batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    return said, model.layers[-1].get_weights()


@pytest.mark.parametrize(("size", "where"), [(2, "outside"), (2, "inside"), (1, "outside")])
def test_worker_0_warns_once_if_the_scope_holds_the_tables_alone(size, where):
    outcomes = call_workers(table_inside, size, where, timeout_s=100)
    trains_apart = size == 2 and where == "outside"
    assert [len(said) for said, _ in outcomes] == [int(trains_apart), 0][:size]
    if trains_apart:
        assert "gradients of dense weights are not exchanged" in outcomes[0][0][0]
    kernels = [weights[0] for _, weights in outcomes]
    assert (kernels[0] != kernels[-1]).any() == trains_apart


def test_a_model_that_is_made_before_the_scope_trains_from_worker_0s_weights(tmp_path):
    (expected,) = call_workers(plain, 1, 1, timeout_s=100)
    first, second = call_workers(made_before, 2, str(tmp_path), timeout_s=100)
    for got, again, wanted in zip(first[0], second[0], expected, strict=True):
        np.testing.assert_array_equal(got, again)
        np.testing.assert_allclose(got, wanted, atol=2e-6)
    for got, again in zip(first[1], second[1], strict=True):
        np.testing.assert_array_equal(got, again)
    assert first[2] == second[2]


def test_worker_0_warns_once_of_training_outside_of_the_scope():
    (said, first, steps), (none, second, _) = call_workers(made_inside, 2, "outside", timeout_s=100)
    assert none == []
    assert len(said) == 1 and said[0].startswith("The job has 2 workers, and an optimizer that was made inside takes ")
    assert "inside of `with lockstep.scope():`" in said[0]
    # They do train apart.
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
    assert steps == 2 * ROWS // 2 // BATCH


@pytest.mark.parametrize(("size", "where"), [(2, "inside"), (1, "outside"), (1, "inside")])
def test_training_inside_and_on_one_worker_gives_no_warning(size, where):
    assert [said for said, _, _ in call_workers(made_inside, size, where, timeout_s=100)] == [[]] * size
