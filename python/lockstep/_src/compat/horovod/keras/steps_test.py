"""Steps of Keras' optimizers on two workers: what is exchanged, skipped, summed, refused; against plain Keras."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd_tf_keras
from lockstep.testing import reported_by_case, run_cases

pytestmark = pytest.mark.workers

KERAS3 = int(keras.__version__.partition(".")[0]) >= 3
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer if KERAS3 else keras.mixed_precision.LossScaleOptimizer


def sgds():
    """Yields the classes SGD of the installed Keras; Keras 2 has a legacy one as well."""
    yield keras.optimizers.SGD
    if not KERAS3:
        yield keras.optimizers.legacy.SGD


def rows(steps, batch):
    """Returns [steps * batch, 3] and [steps * batch, 1], the same on all ranks."""
    random = np.random.default_rng(11)
    x = random.normal(size=[steps * batch, 3]).astype(np.float32)
    return x, (x @ [[1.0], [-2.0], [0.5]] + 3).astype(np.float32)


def network(optimizer, **arguments):
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Input([3]), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer, keras.losses.MeanSquaredError(), **arguments)
    return model


def fitted(optimizer, x, y, batch, **arguments):
    model = network(optimizer, **arguments)
    model.fit(x, y, batch_size=batch, shuffle=False, epochs=2, verbose=0)
    return model


def check_fit(make, wrap=hvd.DistributedOptimizer, atol=1e-5, **arguments):
    """Checks that `fit` of this rank's rows gives the result of `fit` of all rows on one worker, and trains at all."""
    steps, batch = 6, 4
    x, y = rows(steps, 2 * batch)
    own = np.arange(len(x)).reshape(steps, 2, batch)[:, hvd.rank()].ravel()
    one = fitted(make(), x, y, 2 * batch)
    model = fitted(wrap(make()), x[own], y[own], batch, **arguments)
    assert np.abs(np.ravel(one.get_weights()[0]) - np.ravel(network("sgd").get_weights()[0])).max() > 100 * atol
    for got, wanted in zip(model.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, atol=atol)
    return model


# On workers.


def what_keras_does_with_gradients_comes_behind_the_exchange():
    """Checks clipping, decay, averages of weights, and passes that Keras itself sums."""
    for arguments in (
        {"clipnorm": 0.05},
        {"global_clipnorm": 0.1},
        {"clipvalue": 0.05},
        {"weight_decay": 0.1},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    ):
        check_fit(functools.partial(keras.optimizers.SGD, 0.1, **arguments))
    if KERAS3:
        check_fit(functools.partial(keras.optimizers.SGD, 0.1, gradient_accumulation_steps=3))
    else:
        for arguments in ({"clipnorm": 0.05}, {"global_clipnorm": 0.1}, {"clipvalue": 0.05}):
            check_fit(functools.partial(keras.optimizers.legacy.SGD, 0.1, **arguments))


def models_are_compiled_in_many_ways():
    make = functools.partial(keras.optimizers.SGD, 0.1, momentum=0.9)
    for arguments in ({"run_eagerly": True}, {"steps_per_execution": 3}):
        for each in sgds():
            check_fit(functools.partial(each, 0.1, momentum=0.9), **arguments)
    x, y = rows(1, 4)
    with pytest.raises(NotImplementedError, match=r"jit_compile=False"):
        fitted(hvd.DistributedOptimizer(make()), x, y, 4, jit_compile=True)
    with pytest.raises(NotImplementedError, match=r"jit_compile=False"):
        tf.function(lambda v: hvd_tf.DistributedOptimizer(make()).apply_gradients([(v * 1, v)]), jit_compile=True)(
            tf.Variable([1.0])
        )


def xla_is_off_where_keras_chooses():
    """Checks that Keras 3, which compiles steps by XLA if there is a GPU, does not for an optimizer that exchanges."""
    if not KERAS3:
        return
    loaded = {}
    there, tf.config.list_physical_devices = (
        tf.config.list_physical_devices,
        lambda *_: [tf.config.PhysicalDevice("g", "GPU")],
    )
    try:
        assert network(keras.optimizers.SGD(0.1)).jit_compile
        for optimizer in (
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
            LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))),
        ):
            assert not network(optimizer).jit_compile
        # A model that was saved with a plain optimizer, loaded. `.keras` says true of both, `.h5` of neither.
        folder = Path(tempfile.mkdtemp())
        for name, arguments in (("auto.keras", {}), ("auto.h5", {}), ("true.keras", {"jit_compile": True})):
            model = network(keras.optimizers.SGD(0.1), **arguments)
            assert model.jit_compile
            model.save(folder / name)
            assert keras.models.load_model(folder / name).jit_compile
            loaded[name] = hvd.load_model(folder / name)
    finally:
        tf.config.list_physical_devices = there
    x, y = rows(1, 4)
    for name, model in loaded.items():
        assert not model.jit_compile
        if name.endswith(".keras"):  # Keras itself cannot train some that it has loaded of .h5.
            model.fit(x, y, batch_size=4, verbose=0)


def a_strategy_of_one_device():
    os.environ.pop("TF_CONFIG", None)  # Workers of tests have an empty one, which strategies cannot read.
    for make in sgds():
        for make_strategy in (tf.distribute.OneDeviceStrategy, lambda device: tf.distribute.MirroredStrategy([device])):
            strategy = make_strategy("/cpu:0")
            with strategy.scope():
                v, optimizer = tf.Variable([1.0]), hvd.DistributedOptimizer(make(1.0))

            def step(v=v, optimizer=optimizer):
                optimizer.apply_gradients([(tf.ones([1]) * (1.0 + hvd.rank()), v)])

            tf.function(lambda strategy=strategy, step=step: strategy.run(step))()
            np.testing.assert_allclose(v.numpy(), [-0.5])


def flags_of_keras2_say_nothing_of_ranks():
    """Checks that flags about replicas in a process do not stop the exchange between ranks."""
    if KERAS3:
        return
    for make, flag in (
        (keras.optimizers.SGD, {"skip_gradients_aggregation": True}),
        (keras.optimizers.SGD, {"experimental_aggregate_gradients": False}),
        (keras.optimizers.legacy.SGD, {"experimental_aggregate_gradients": False}),
    ):
        for has_tape in (False, True):
            for is_eager in (False, True):
                v, optimizer = tf.Variable([1.0]), hvd_tf.DistributedOptimizer(make(1.0), op=hvd_tf.Sum)

                def step(v=v, optimizer=optimizer, flag=flag, has_tape=has_tape):
                    with tf.GradientTape() as tape:
                        loss = v * (1.0 + hvd.rank())
                    if has_tape:
                        tape = hvd_tf.DistributedGradientTape(tape, op=hvd_tf.Sum)
                    optimizer.apply_gradients([(tape.gradient(loss, v), v)], **flag)

                (step if is_eager else tf.function(step))()
                np.testing.assert_allclose(v, [-2.0])


def ranks_have_gradients_of_the_same_variables():
    """Checks that otherwise all ranks get an error at once, and can continue."""
    one = tf.constant([1.0])
    sparse = tf.IndexedSlices(tf.ones([1]), tf.constant([0]), tf.constant([1]))
    cases = [
        # Gradients that rank 0 and rank 1 apply to variables 0, 1 and 2.
        ({0: one, 1: one}, {0: None, 1: one}),
        ({0: one, 1: one}, {0: one}),
        ({0: one, 1: one}, {0: None, 1: None}),
        ({0: one, 1: one}, {1: one, 2: one}),
        ({0: one}, {0: sparse}),
    ]
    for make in sgds():
        for case in cases:
            # In a function Keras itself refuses a rank without any, before it runs.
            for is_eager in (True, False) if any(g is not None for g in case[1].values()) else (True,):
                # Variables 1 and 2 are not alike.
                variables = [tf.Variable([1.0]), tf.Variable([1.0]), tf.Variable([[1.0]])]
                optimizer = hvd.DistributedOptimizer(make(1.0))
                own = {i: tf.ones([1, 1]) if i == 2 and g is not None else g for i, g in case[hvd.rank()].items()}

                def step(own=own, variables=variables, optimizer=optimizer):
                    optimizer.apply_gradients([(g, variables[i]) for i, g in own.items()])

                run = step if is_eager else tf.function(step)
                with pytest.raises(tf.errors.FailedPreconditionError, match="variables_with_gradients_which"):
                    run()
                for v in variables:
                    np.testing.assert_allclose(np.ravel(v), [1.0])
                again = hvd.DistributedOptimizer(make(1.0))
                again.apply_gradients([(one * (1 + hvd.rank()), variables[0])])
                np.testing.assert_allclose(variables[0], [-0.5])
    # None on all ranks stays None; subsets that all have are fine.
    v, unused, other = tf.Variable([1.0]), tf.Variable([1.0]), tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, weight_decay=0.5))
    optimizer.build([v, unused, other])
    for pairs in ([(one * (1 + hvd.rank()), v), (None, unused)], [(one * (1 + hvd.rank()), other)]):
        optimizer.apply_gradients(pairs)
    assert float(unused[0]) in (0.5, 1.0)
    np.testing.assert_allclose(v, other)


def scaled(optimizer):
    return float(tf.convert_to_tensor(optimizer.dynamic_scale if KERAS3 else optimizer.loss_scale))


def loss_scales(**arguments):
    """Yields optimizers with a loss scale inside and outside of the exchange, of all generations of Keras."""
    for make in sgds():
        how = {"initial_scale": 4.0, "dynamic_growth_steps": 100}
        yield LossScaleOptimizer(hvd_tf_keras.DistributedOptimizer(make(1.0), **arguments), **how)
        yield hvd_tf_keras.DistributedOptimizer(LossScaleOptimizer(make(1.0), **how), **arguments)


def a_step_is_skipped_on_all_ranks_or_none():
    """Skips the step if one rank's gradient is not finite, in a loop with a plain tape."""
    for i in range(len([*loss_scales()])):
        for is_eager in (False, True):
            optimizer, v = [*loss_scales()][i], tf.Variable([1.0])

            def step(factor, optimizer=optimizer, v=v):
                with tf.GradientTape() as tape:
                    loss = v * factor
                    loss = optimizer.scale_loss(loss) if KERAS3 else optimizer.get_scaled_loss(loss)
                gradients = tape.gradient(loss, [v])
                if not KERAS3:
                    gradients = optimizer.get_unscaled_gradients(gradients)
                optimizer.apply_gradients(zip(gradients, [v], strict=True))

            run = step if is_eager else tf.function(step)
            optimizer.build([v]) if hasattr(optimizer, "build") else None
            run(tf.constant([1.0 + hvd.rank()]))
            np.testing.assert_allclose(v, [-0.5])
            run(tf.constant([np.inf if hvd.rank() else 1.0]))
            np.testing.assert_allclose(v, [-0.5])
            assert scaled(optimizer) == 2.0
            run(tf.constant([1.0 + hvd.rank()]))
            np.testing.assert_allclose(v, [-2.0])


def a_local_gradient_skips_the_step_of_all():
    """Checks that scales stay equal."""
    for i in range(len([*loss_scales()])):
        for is_eager in (False, True):
            optimizer, v, own = [*loss_scales()][i], tf.Variable([1.0]), tf.Variable([1.0])
            inner = optimizer if hasattr(optimizer, "register_local_var") else optimizer.inner_optimizer
            if hvd.rank():
                inner.register_local_var(own)

            def step(local, optimizer=optimizer, v=v, own=own):
                pairs = [(tf.constant([4.0]), v), *([(local, own)] if hvd.rank() else [])]
                optimizer.apply_gradients(pairs)

            run = step if is_eager else tf.function(step)
            for local, scale in ((2.0, 4.0), (np.nan, 2.0)):
                run(tf.constant([local]))
                assert scaled(optimizer) == scale
                np.testing.assert_allclose(v, [0.0 if KERAS3 else -3.0])


def mixed_precision():
    """Checks the LossScaleOptimizer that `compile` adds if there is none, also with several passes."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    twice = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    try:
        for each in sgds():

            def around(optimizer):
                return LossScaleOptimizer(optimizer, initial_scale=4.0)

            check_fit(lambda each=each, around=around: around(each(0.05)), atol=1e-2)
            x, y = rows(3, 4)
            model = fitted(hvd.DistributedOptimizer(each(0.05)), x, y * (1 + 1000 * hvd.rank()), 4)
            assert isinstance(model.optimizer, LossScaleOptimizer)
            for got in (scaled(model.optimizer), model.get_weights()[0]):
                np.testing.assert_equal(*hvd_tf.allgather_object(got))
            plain = fitted(around(each(0.05)), x, y, 4)
            for passes in (
                around(hvd_tf_keras.DistributedOptimizer(each(0.05), **twice)),
                hvd_tf_keras.DistributedOptimizer(around(each(0.05)), **twice),
            ):
                got = fitted(passes, x, y, 2)
                np.testing.assert_allclose(got.get_weights()[0], plain.get_weights()[0], atol=1e-2)
                assert int(got.optimizer.iterations) == 12
    finally:
        keras.mixed_precision.set_global_policy("float32")


CASES = [
    what_keras_does_with_gradients_comes_behind_the_exchange,
    models_are_compiled_in_many_ways,
    xla_is_off_where_keras_chooses,
    a_strategy_of_one_device,
    flags_of_keras2_say_nothing_of_ranks,
    ranks_have_gradients_of_the_same_variables,
    a_step_is_skipped_on_all_ranks_or_none,
    a_local_gradient_skips_the_step_of_all,
    mixed_precision,
]


def all_cases():
    hvd.init()
    run_cases(CASES, lambda name: hvd_tf.barrier(name=name))
    hvd.shutdown()


# Promise (horovod_training.md): steps with clipping, decay, averages, XLA, strategies and loss scales train as in
# Keras.
test_steps_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=240)
