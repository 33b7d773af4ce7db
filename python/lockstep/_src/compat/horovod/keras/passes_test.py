"""`backward_passes_per_step` and local layers of Keras' optimizers on two workers."""

from __future__ import annotations

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


def sgds():
    """Yields the classes SGD of the installed Keras; Keras 2 has a legacy one as well."""
    yield keras.optimizers.SGD
    if not KERAS3:
        yield keras.optimizers.legacy.SGD


def passing(make=keras.optimizers.SGD, passes=3, **arguments):
    return hvd_tf_keras.DistributedOptimizer(make(1.0), backward_passes_per_step=passes, **arguments)


def own(value=1.0):
    """Returns this rank's gradient, whose mean over two ranks is 1.5 times `value`."""
    return tf.constant([value]) * (1.0 + hvd.rank())


# On workers.


def passes_of_another_job_are_forgotten():
    """Ranks that had got to different passes when they joined a job, as in an elastic one, reduce together in it."""
    for make in sgds():
        for is_eager in (True, False):
            v, optimizer = tf.Variable([0.0]), passing(make)

            def step(v=v, optimizer=optimizer):
                optimizer.apply_gradients([(own(), v)])

            run = step if is_eager else tf.function(step)
            for _ in range(1 + hvd.rank()):
                run()
            hvd_tf.barrier()
            hvd.shutdown()
            hvd.init()
            for n in range(1, 7):
                run()
                np.testing.assert_allclose(v, [-4.5 * (n // 3)])


def parts_of_a_model_are_counted_apart():
    """Trains two networks in turn with one optimizer."""
    for is_eager in (True, False):
        a, b, optimizer = tf.Variable([0.0]), tf.Variable([0.0]), passing(passes=2)
        optimizer.build([a, b])

        def step(v, optimizer=optimizer):
            optimizer.apply_gradients([(own(), v)])

        for v, wanted in ((a, [0, 0]), (b, [0, 0]), (b, [0, -3]), (a, [-3, -3])):
            (step if is_eager else tf.function(step))(v)
            np.testing.assert_allclose([float(a[0]), float(b[0])], wanted)


def what_was_summed_is_applied_though_the_last_pass_has_no_gradient():
    for make in sgds():
        a, b, optimizer = tf.Variable([0.0]), tf.Variable([0.0]), passing(make, passes=2)
        optimizer.apply_gradients([(own(), a), (own(2.0), b)])
        optimizer.apply_gradients([(own(), a), (None, b)])
        np.testing.assert_allclose([a, b], [[-3.0], [-3.0]])
    # A rank may not lack a gradient that another rank has, for one variable or for all.
    for pairs in ([(own(), a), (None if hvd.rank() else own(), b)], [(None if hvd.rank() else own(), a)]):
        optimizer = passing(passes=2)
        with pytest.raises(tf.errors.FailedPreconditionError, match="variables_with_gradients_which"):
            for _ in range(2):
                optimizer.apply_gradients(pairs)


def a_sum_of_passes():
    """Uses `op=hvd.Sum`, eagerly and not, with and without the average over passes."""
    for make in sgds():
        for average, factor in ((True, 3.0), (False, 6.0)):
            for is_eager in (True, False):
                v = tf.Variable([0.0])
                optimizer = passing(make, 2, op=hvd_tf.Sum, average_aggregated_gradients=average)

                def step(v=v, optimizer=optimizer):
                    optimizer.apply_gradients([(own(), v)])

                for _ in range(4):
                    (step if is_eager else tf.function(step))()
                np.testing.assert_allclose(v, [-2 * factor])


def gradients_of_passes_are_exchanged_once():
    for is_eager in (True, False):
        v, optimizer = tf.Variable([0.0]), passing()

        def step(v=v, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = v * (1.0 + hvd.rank())
            tape = hvd_tf.DistributedGradientTape(tape)
            optimizer.apply_gradients([(tape.gradient(loss, v), v)])

        with pytest.raises(ValueError, match="wrap the tape or the optimizer, not both"):
            (step if is_eager else tf.function(step))()
    if KERAS3:
        return
    # Looked at, and left out of what is applied.
    for make in sgds():
        v, unused, optimizer = tf.Variable([0.0]), tf.Variable([0.0]), passing(make, 2)

        @tf.function
        def minimize(v=v, unused=unused, optimizer=optimizer):
            pairs = optimizer.compute_gradients(lambda: v * (1.0 + hvd.rank()), [v, unused])
            optimizer.apply_gradients([(g, u) for g, u in pairs if g is not None])

        for n in range(1, 5):
            minimize()
            np.testing.assert_allclose(v, [-3.0 * (n // 2)])


def layers_without_weights_yet_stay_local():
    """Registers layers whose weights the first batch creates."""
    x, y = np.ones([1, 1], np.float32) * (1 + hvd.rank()), np.zeros([1, 1], np.float32)
    for make in sgds():
        for scale, factor in ((True, 0.5), (False, 1.0)):
            local, shared = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
            optimizer = hvd.PartialDistributedOptimizer(make(0.01), local_layers=[local], scale_local_gradients=scale)
            model = keras.Sequential([local, shared])
            model.compile(optimizer, keras.losses.MeanSquaredError())
            assert not local.built
            model.fit(x, y, verbose=0)
            # d/dw of (w u x)^2, where all is 1: 2 x^2.
            got = [float(w[0][0]) for w in model.get_weights()]
            np.testing.assert_allclose(got, [1 - 0.01 * factor * 2 * (1 + hvd.rank()) ** 2, 1 - 0.01 * 5], rtol=1e-5)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    for _ in range(2):
        # With a tape, the weights are registered when its gradients are asked for.
        with hvd_tf.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer) as tape:
            loss = layer(x)
        (weight,) = layer.trainable_weights
        got = tape.gradient(loss, [weight])
        np.testing.assert_allclose(got[0], [[(1 + hvd.rank()) / 2]])


CASES = [
    passes_of_another_job_are_forgotten,
    parts_of_a_model_are_counted_apart,
    what_was_summed_is_applied_though_the_last_pass_has_no_gradient,
    a_sum_of_passes,
    gradients_of_passes_are_exchanged_once,
    layers_without_weights_yet_stay_local,
]


def all_cases():
    hvd.init()
    run_cases(CASES, lambda name: hvd_tf.barrier(name=name))
    hvd.shutdown()


# Promise (horovod_training.md): backward passes are counted for each optimizer and job, also in graphs of TensorFlow 1.
test_passes_and_local_layers_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=120)


def passes_in_graphs_of_tensorflow1():
    """Takes as many steps as plain Keras with batches twice as large; the session initializes the sums."""
    tf.compat.v1.disable_v2_behavior()
    hvd.init()
    x = np.random.default_rng(3).normal(size=[8, 2]).astype(np.float32)
    y = (x @ [[1.0], [-1.0]]).astype(np.float32)

    def fitted(optimizer, batch):
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,), kernel_initializer="ones")])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    wanted = fitted(keras.optimizers.legacy.SGD(0.1, momentum=0.5), 4)
    for average, rate in ((True, 0.1), (False, 0.05)):
        optimizer = hvd_tf_keras.DistributedOptimizer(
            keras.optimizers.legacy.SGD(rate, momentum=0.5),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        for got, of_plain in zip(fitted(optimizer, 2), wanted, strict=True):
            np.testing.assert_allclose(got, of_plain, atol=1e-5)
    hvd.shutdown()


# Promise (horovod_training.md): backward passes are counted for each optimizer and job, also in graphs of TensorFlow 1.
@pytest.mark.skipif(KERAS3, reason="Keras 3 runs on TensorFlow 2's behaviour alone")
def test_passes_of_keras2_in_graphs_of_tensorflow1():
    call_workers(passes_in_graphs_of_tensorflow1, 2, timeout_s=120)
