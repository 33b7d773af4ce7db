"""Keras on two workers, with `fit` and in loops of one's own, against plain Keras on one."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd_tf_keras
from lockstep.testing import call_workers, reported_by_case, run_cases

pytestmark = pytest.mark.workers

KERAS3 = int(keras.__version__.partition(".")[0]) >= 3
SETS = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]


def optimizers():
    """Yields functions that make optimizers of the installed Keras; Keras 2 has legacy ones as well."""
    yield lambda: keras.optimizers.SGD(1.0)
    if not KERAS3:
        yield lambda: keras.optimizers.legacy.SGD(1.0)


def mnist(steps, batch):
    """Returns images that tell their labels: [steps * batch, 28, 28, 1] and [steps * batch]."""
    random = np.random.default_rng(7)
    labels = random.integers(0, 10, steps * batch)
    images = random.random([steps * batch, 28, 28, 1], np.float32)
    images[np.arange(len(labels)), labels] += 1
    return images, labels


def digits():
    keras.utils.set_random_seed(3)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input([28, 28, 1]),
            layers.Conv2D(4, 5, strides=3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def compiled(model, optimizer, **arguments):
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(optimizer, loss, metrics=["accuracy"], **arguments)
    return model


def line(optimizer=None):
    """Returns a model y = w x that begins with w = 1."""
    model = keras.Sequential(
        [keras.layers.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    if optimizer is not None:
        model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


# On workers.


def fit_equals_one_worker():
    steps, batch = 6, 16
    images, labels = mnist(steps, 2 * batch)
    own = np.arange(len(images)).reshape(steps, 2, batch)[:, hvd.rank()].ravel()
    for wrap, make in (
        (hvd.DistributedOptimizer, lambda: keras.optimizers.Adam(0.01)),
        (hvd_tf.DistributedOptimizer, lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)),
    ):
        one = compiled(digits(), make())
        wanted = one.fit(images, labels, batch_size=2 * batch, shuffle=False, epochs=2, verbose=0).history
        model = compiled(digits(), wrap(make()))
        got = model.fit(
            images[own],
            labels[own],
            batch_size=batch,
            shuffle=False,
            epochs=2,
            verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
        ).history
        for a, b in zip(model.get_weights(), one.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        np.testing.assert_allclose(got["loss"], wanted["loss"], atol=1e-5)
        np.testing.assert_allclose(got["accuracy"], wanted["accuracy"], atol=1e-5)


def loops():
    """Checks that gradients are exchanged once, by a tape or the optimizer; Horovod does not change unreduced ones."""
    for make in optimizers():
        for op, factor in ((hvd.Average, 1.5), (hvd_tf.Sum, 3.0)):
            for has_tape in (False, True):
                for is_eager in (False, True):
                    v = tf.Variable([1.0, 2.0])
                    optimizer = hvd_tf.DistributedOptimizer(make(), op=op)

                    def step(v=v, optimizer=optimizer, op=op, has_tape=has_tape):
                        with tf.GradientTape() as tape:
                            loss = tf.reduce_sum(v) * (1.0 + hvd.rank())
                        if has_tape:
                            tape = hvd_tf.DistributedGradientTape(tape, op=op)
                        optimizer.apply_gradients(zip(tape.gradient(loss, [v]), [v], strict=True))

                    run = step if is_eager else tf.function(step)
                    for n in (1, 2):
                        run()
                        np.testing.assert_allclose(v, [1.0 - n * factor, 2.0 - n * factor])
                        assert int(optimizer.iterations) == n
    # Clipped between, where it can be told, and where it cannot.
    v = tf.Variable([1.0, 2.0])
    optimizer = hvd_tf.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd_tf.Sum)

    def clip():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v) * (1.0 + hvd.rank())
        tape = hvd_tf.DistributedGradientTape(tape, op=hvd_tf.Sum)
        optimizer.apply_gradients([(tf.clip_by_norm(g, 1e6), v) for g in tape.gradient(loss, [v])])

    tf.function(clip)()
    np.testing.assert_allclose(v, [-2.0, -1.0])
    with pytest.raises(ValueError, match="wrap the tape or the optimizer, not both"):
        clip()


def minimizing_of_keras2():
    if KERAS3:
        return
    for make in optimizers():
        for is_eager in (False, True):
            v = tf.Variable([1.0, 2.0])
            optimizer = hvd_tf.DistributedOptimizer(make(), op=hvd_tf.Sum)

            def loss(v=v):
                return tf.reduce_sum(v) * (1.0 + hvd.rank())

            def step(v=v, optimizer=optimizer, loss=loss):
                optimizer.minimize(loss, [v])
                pairs = optimizer.compute_gradients(loss, [v])
                # Trusted, also eagerly, as it comes from this optimizer.
                optimizer.apply_gradients([(tf.clip_by_norm(g, 1e6), v) for g, v in pairs])

            (step if is_eager else tf.function(step))()
            np.testing.assert_allclose(v, [-5.0, -4.0])


def rows_of_embeddings():
    for sparse_as_dense in (False, True):
        for is_eager in (False, True):
            table = tf.Variable(np.zeros([3, 1], np.float32))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=sparse_as_dense)

            def step(table=table, optimizer=optimizer):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 2])) * (1.0 + hvd.rank())
                optimizer.apply_gradients([(tape.gradient(loss, table), table)])

            (step if is_eager else tf.function(step))()
            np.testing.assert_allclose(table, [[-0.5], [-1.0], [-1.5]])


def passes():
    """Checks passes, also with local variables and a gradient that is None, which Horovod's assertion refuses."""
    for average, factor in ((True, 1.0), (False, 3.0)):
        for make in optimizers():
            for is_eager in (False, True):
                v, own, unrelated = tf.Variable([0.0]), tf.Variable([0.0]), tf.Variable([5.0])
                optimizer = hvd_tf_keras.DistributedOptimizer(
                    make(), backward_passes_per_step=3, average_aggregated_gradients=average, sparse_as_dense=True
                )
                optimizer.register_local_var(own)

                def step(v=v, own=own, unrelated=unrelated, optimizer=optimizer):
                    with tf.GradientTape() as tape:
                        loss = (v + tf.gather(own, [0])) * (1.0 + hvd.rank())
                    variables = [v, unrelated, own]
                    gradients = tape.gradient(loss, variables)
                    optimizer.apply_gradients([(g, u) for g, u in zip(gradients, variables, strict=True)])

                run = step if is_eager else tf.function(step)
                for n in range(1, 8):
                    run()
                    np.testing.assert_allclose(v, [-1.5 * factor * (n // 3)])
                    np.testing.assert_allclose(own, [-0.5 * (1 + hvd.rank()) * factor * (n // 3)])
                    assert int(optimizer.iterations) == n
    v = tf.Variable([0.0])
    optimizer = hvd_tf_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="sparse_as_dense"):
        optimizer.apply_gradients([(tf.IndexedSlices([1.0], [0], [1]), v)])
    # In fit, where the model's variables equal the results of a plain optimizer with twice the batch.
    x = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    model = line(
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.01), backward_passes_per_step=2, average_aggregated_gradients=True
        )
    )
    plain = line(keras.optimizers.SGD(0.01))
    model.fit(x, 3 * x, batch_size=1, shuffle=False, epochs=2, verbose=0)
    plain.fit(x, 3 * x, batch_size=2, shuffle=False, epochs=2, verbose=0)
    np.testing.assert_allclose(model.get_weights(), plain.get_weights(), rtol=1e-5)


def local_layers():
    x = tf.constant([[1.0 + hvd.rank()]])
    for wrap in (hvd.PartialDistributedOptimizer, hvd_tf_keras.PartialDistributedOptimizer):
        for scale, factor in ((True, 0.5), (False, 1.0)):
            model = keras.Sequential(
                [keras.layers.Input([1])]
                + [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
            )
            optimizer = wrap(keras.optimizers.SGD(1.0), local_layers=model.layers[0], scale_local_gradients=scale)
            with tf.GradientTape() as tape:
                loss = model(x)
            weights = model.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            got = [float(w[0][0]) for w in model.get_weights()]
            np.testing.assert_allclose(got, [1 - factor * (1 + hvd.rank()), 1 - 1.5], rtol=1e-6)
        with pytest.raises(ValueError, match="tf.keras.layers.Layer type"):
            wrap(keras.optimizers.SGD(1.0), local_layers=[3])


def process_sets_and_names():
    v = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=SETS[0])
    optimizer.apply_gradients([(tf.constant([1.0 + hvd.rank()]), v)])
    np.testing.assert_allclose(v, [-hvd.rank()])
    for wrong in (hvd_tf.Adasum, hvd_tf.Max):
        with pytest.raises(ValueError, match="Average and Sum"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=wrong)
    with pytest.raises(ValueError, match="Adasum"):
        hvd_tf.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd_tf.Adasum)
    with pytest.raises(TypeError, match="wanted an optimizer"):
        hvd.DistributedOptimizer("sgd")


class Doubling(keras.optimizers.SGD):
    """An optimizer of a program's own."""

    def get_config(self):
        return super().get_config() | {"learning_rate": 1.0}


def class_config_and_state():
    plain = Doubling(1.0)
    optimizer = hvd.DistributedOptimizer(plain)
    assert type(optimizer).__name__ == "Doubling"
    assert isinstance(optimizer, Doubling)
    assert json.dumps(optimizer.get_config(), default=str) == json.dumps(plain.get_config(), default=str)
    for copy in (optimizer.from_config(optimizer.get_config()), type(optimizer).from_config(optimizer.get_config())):
        v = tf.Variable([1.0])
        copy.apply_gradients([(tf.constant([1.0 + hvd.rank()]), v)])
        np.testing.assert_allclose(v, [-0.5])
    # State goes along, also of a wrapper, whose options the new one replaces.
    for make in (lambda: keras.optimizers.SGD(1.0, momentum=0.5), *(() if KERAS3 else [legacy_momentum])):
        v = tf.Variable([0.0])
        trained = make()
        trained.apply_gradients([(tf.constant([2.0]), v)])
        again = hvd.DistributedOptimizer(trained, op=hvd.Average)
        again = hvd.DistributedOptimizer(again, op=hvd.Sum)
        again.apply_gradients([(tf.constant([1.0]), v)])
        assert int(again.iterations) == 2
        np.testing.assert_allclose(v, [-2.0 - (1.0 + 2.0)])


def legacy_momentum():
    return keras.optimizers.legacy.SGD(1.0, momentum=0.5)


def checkpoints_and_models():
    """Checks that plain optimizers load the state that wrapped ones saved, and the other way round."""
    x = np.array([[1.0], [2.0]], np.float32)
    folder = Path(tempfile.mkdtemp())
    model = line(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    model.fit(x, 3 * x, batch_size=1, shuffle=False, verbose=0)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(folder / "checkpoint"))
    model.save(folder / "model.keras")
    hvd.allreduce(1.0, name="all are saved")

    plain = keras.models.load_model(folder / "model.keras")
    assert type(plain.optimizer) is keras.optimizers.Adam
    loaded = [
        hvd.load_model(folder / "model.keras"),
        hvd_tf_keras.load_model(folder / "model.keras", compression=hvd.Compression.fp16),
    ]
    restored = line(keras.optimizers.Adam(0.1))
    tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).read(path)
    assert int(plain.optimizer.iterations) == 2
    for other in loaded:
        assert type(other.optimizer).__name__ == "Adam"
        assert hasattr(other.optimizer, "register_local_var")
    for each in (model, plain, restored, *loaded):
        each.fit(x, 3 * x, batch_size=1, shuffle=False, verbose=0)
    for each in (plain, restored, *loaded):
        np.testing.assert_allclose(each.get_weights(), model.get_weights(), atol=1e-3)
        assert int(each.optimizer.iterations) == 4
    # A class of the program's own, by both ways.
    model = line(hvd.DistributedOptimizer(Doubling(0.1)))
    model.fit(x, 3 * x, verbose=0)
    model.save(folder / "own.keras")
    for arguments in ({"custom_optimizers": [Doubling]}, {"custom_objects": {"Doubling": Doubling}}):
        other = hvd.load_model(folder / "own.keras", **arguments)
        assert isinstance(other.optimizer, Doubling)
        assert hasattr(other.optimizer, "register_local_var")


def models_with_loss_scales():
    """Saves and loads a LossScaleOptimizer inside and outside of the exchange, with its scale, slots and steps."""
    scales = keras.optimizers if KERAS3 else keras.mixed_precision
    x = np.array([[1.0], [2.0]], np.float32)
    folder = Path(tempfile.mkdtemp())
    for i, wrap in enumerate(
        (
            lambda: scales.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), initial_scale=4.0),
            lambda: hvd.DistributedOptimizer(scales.LossScaleOptimizer(keras.optimizers.Adam(0.1), initial_scale=4.0)),
        )
    ):
        model = line(wrap())
        # In one step the gradient is not finite.
        model.fit(
            np.array([[1.0], [np.inf], [2.0]], np.float32), np.ones([3, 1]), batch_size=1, shuffle=False, verbose=0
        )
        model.save(folder / f"{i}.keras")
        loaded = hvd.load_model(folder / f"{i}.keras")
        plain = keras.models.load_model(folder / f"{i}.keras")
        assert not hasattr(plain.optimizer, "register_local_var")
        for each in (model, loaded, plain):
            scale = each.optimizer.dynamic_scale if KERAS3 else each.optimizer.loss_scale
            # Keras 2 saves no scale in this format.
            assert float(tf.convert_to_tensor(scale)) == (2.0 if KERAS3 or each is model else 4.0)
            each.fit(x, 3 * x, batch_size=1, shuffle=False, verbose=0)
        for each in (model, loaded):
            np.testing.assert_allclose(each.get_weights(), plain.get_weights(), rtol=1e-5)
            assert int(each.optimizer.iterations) == int(plain.optimizer.iterations)
        # Wrapped again: sums, once.
        again = hvd.DistributedOptimizer(loaded.optimizer, op=hvd.Sum)
        weight, before = loaded.trainable_variables[0], loaded.get_weights()[0]
        plain.optimizer.apply_gradients([(tf.constant([[6.0]]), plain.trainable_variables[0])])
        again.apply_gradients([(tf.constant([[2.0 * (1 + hvd.rank())]]), weight)])
        assert np.abs(loaded.get_weights()[0] - before).max() > 1e-3
        np.testing.assert_allclose(loaded.get_weights(), plain.get_weights(), rtol=1e-5)


def apply_to(optimizer, variables, gradient):
    optimizer.apply_gradients([(gradient, v) for v in variables])


def skipped_steps():
    """Checks that all ranks skip a step in which one has infinite gradients in float16, and none waits forever."""
    if not KERAS3:
        return
    for wrap in (
        lambda: keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), 4.0),
        lambda: hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 4.0)),
    ):
        for is_eager in (False, True):
            v, optimizer = keras.Variable([1.0]), wrap()
            run = functools.partial(apply_to, optimizer, [v])
            run = run if is_eager else tf.function(run)
            run(tf.constant([4.0 * (1 + hvd.rank())]))
            np.testing.assert_allclose(v.numpy(), [-0.5])
            run(tf.constant([np.inf if hvd.rank() else 1.0]))
            np.testing.assert_allclose(v.numpy(), [-0.5])
            assert float(optimizer.dynamic_scale.numpy()) == 2.0


def host_values():
    rank = hvd.rank()
    for module in (hvd, hvd_tf_keras):
        np.testing.assert_allclose(module.allreduce(np.array([1.0 + rank])), [1.5])
        np.testing.assert_allclose(module.allreduce([1.0 + rank], op=hvd.Sum, prescale_factor=2.0), [6.0])
        np.testing.assert_allclose(module.allreduce([1.0 + rank], average=False), [3.0])
        np.testing.assert_allclose(module.allgather([[rank]] * (1 + rank)), [[0], [1], [1]])
        np.testing.assert_allclose(module.broadcast([1.0 + rank], 1, name="b"), [2.0])
        np.testing.assert_allclose(module.reducescatter([1.0 + rank, 2.0], op=hvd.Sum), [[3.0], [4.0]][rank])
        assert (module.size(), module.rank()) == (2, rank)
        with pytest.raises(RuntimeError, match="eager execution"):
            module.broadcast_global_variables(0)


CASES = [
    fit_equals_one_worker,
    loops,
    minimizing_of_keras2,
    rows_of_embeddings,
    passes,
    local_layers,
    process_sets_and_names,
    class_config_and_state,
    checkpoints_and_models,
    models_with_loss_scales,
    skipped_steps,
    host_values,
]


def all_cases():
    hvd_tf.init(process_sets=SETS)
    run_cases(CASES, lambda name: hvd_tf.barrier(name=name))
    hvd_tf.shutdown()


# Promise (horovod_training.md): `fit` on two workers equals `fit` on one with twice the batch.
test_keras_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=300)


def graphs_of_tensorflow1():
    """Keras runs a session; its optimizers are legacy ones there."""
    tf.compat.v1.disable_v2_behavior()
    hvd.init()
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(1,), use_bias=False, kernel_initializer="ones")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1, momentum=0.5)), "mse")
    if hvd.rank() == 1:
        model.set_weights([np.array([[5.0]])])
    x = np.array([[1.0 + hvd.rank()]])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: [1.0, 0.5][epoch]),
        hvd.callbacks.MetricAverageCallback(),
    ]
    model.fit(x, 0 * x, epochs=2, callbacks=callbacks, verbose=0)
    first, second = hvd.allgather(model.get_weights()[0]).ravel()
    assert first == second
    np.testing.assert_allclose(hvd.allreduce(1.0 + hvd.rank()), 1.5)
    a_state_in_graphs_of_tensorflow1(x)
    hvd.shutdown()


def a_state_in_graphs_of_tensorflow1(x):
    """Creates a state before the first step, and with it the optimizer's variables, which it initializes."""
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(1,), use_bias=False)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1, momentum=0.5)), "mse")
    state = hvd.elastic.KerasState(model, batch=hvd.rank())
    model.set_weights([np.array([[2.0 + hvd.rank()]])])
    state.sync()
    assert state.batch == 0
    weight, velocity = 2.0, 0.0

    def train():
        model.fit(x, 0 * x, verbose=0)
        # Rank 0's row is 1, and rank 1's is 2.
        moved = 0.5 * velocity - 0.1 * np.mean([2 * weight * row**2 for row in (1.0, 2.0)])
        np.testing.assert_allclose(model.get_weights()[0], [[weight + moved]], atol=1e-5)
        return weight + moved, moved

    weight, velocity = train()
    state.commit()
    train()
    state.restore()
    np.testing.assert_allclose(model.get_weights()[0], [[weight]], atol=1e-5)
    train()  # with the velocity that was committed


@pytest.mark.skipif(KERAS3, reason="Keras 3 runs on TensorFlow 2's behaviour alone")
def test_keras2_in_graphs_of_tensorflow1():
    call_workers(graphs_of_tensorflow1, 2, timeout_s=120)
