"""Values of one rank for all, when training begins, on two workers."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
from lockstep.testing import reported_by_case, run_cases

pytestmark = pytest.mark.workers

KERAS3 = int(keras.__version__.partition(".")[0]) >= 3
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer if KERAS3 else keras.mixed_precision.LossScaleOptimizer


def line(optimizer):
    """Returns a model y = w x that begins with w = 1."""
    model = keras.Sequential(
        [keras.layers.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


class Alike(keras.Model):
    """Three layers whose weights have one name, like the weights of a network's copies."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1, use_bias=False, name="alike") for _ in range(3)]
        for part in self.parts:
            part.build((None, 1))


# On workers.


def broadcasts():
    """Checks that each rank keeps its own first layer and the optimizer's state for it."""
    model = keras.Sequential(
        [keras.layers.Input([1])]
        + [
            keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(1.0 + hvd.rank()))
            for _ in range(3)
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0, momentum=0.5))
    own = model.layers[0].trainable_weights[0]
    optimizer.register_local_var(own)
    model.compile(optimizer, keras.losses.MeanSquaredError())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=own)
    optimizer.build(model.trainable_variables)
    for i, slot in enumerate(optimizer.momentums):
        slot.assign([[10.0 * (1 + hvd.rank()) + i]])
    model.fit(np.zeros([1, 1]), np.zeros([1, 1]), callbacks=[callback], verbose=0)
    # Each moved by half of its momentum in the step.
    np.testing.assert_allclose(np.ravel(model.get_weights()), [6.0 * (1 + hvd.rank()), 2 + 10.5, 2 + 11])
    np.testing.assert_allclose(float(optimizer.momentums[0][0][0]), 5.0 * (1 + hvd.rank()))
    np.testing.assert_allclose([float(m[0][0]) for m in optimizer.momentums[1:]], [10.5, 11])
    with pytest.raises(ValueError, match="tf.Variable"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[3])


def variables_called_alike():
    """Checks that order, not names, tells the local ones apart, with several slots each."""
    for make, slots_of in (
        (functools.partial(keras.optimizers.SGD, 0.0, momentum=0.5), 1),
        (functools.partial(keras.optimizers.Adam, 0.0), 2),
    ):
        for place in (0, 1, 2):
            model = Alike()
            weights = model.trainable_weights
            assert len({getattr(w, "path", w.name) for w in weights}) == 1
            optimizer = hvd.DistributedOptimizer(make())
            optimizer.register_local_var(weights[place])
            model.compile(optimizer, keras.losses.MeanSquaredError())
            optimizer.build(weights)
            callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=weights[place])
            callback.set_model(model)
            slots = [v for v in optimizer.variables if tuple(v.shape) == (1, 1)]
            assert len(slots) == 3 * slots_of
            for i, slot in enumerate(slots):
                slot.assign([[100.0 * hvd.rank() + i]])
            callback.on_batch_end(0)
            kinds = [optimizer.momentums] if slots_of == 1 else [optimizer._momentums, optimizer._velocities]
            got = [np.ravel([np.asarray(slot) for slot in each]) for each in zip(*kinds, strict=True)]
            for i, values in enumerate(got):
                assert (values >= 100).all() == (i != place or hvd.rank() == 1), (place, got)


def scales_are_broadcast():
    makes = [keras.optimizers.SGD] if KERAS3 else [keras.optimizers.SGD, keras.optimizers.legacy.SGD]
    for make in makes:
        # The scale of a model that one rank has loaded.
        optimizer = hvd.DistributedOptimizer(LossScaleOptimizer(make(0.1), initial_scale=2.0 ** (2 + hvd.rank())))
        model = line(optimizer)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
        model.fit(np.zeros([1, 1]), np.zeros([1, 1]), callbacks=[callback], verbose=0)
        assert float(tf.convert_to_tensor(optimizer.dynamic_scale if KERAS3 else optimizer.loss_scale)) == 8.0


CASES = [broadcasts, variables_called_alike, scales_are_broadcast]


def all_cases():
    hvd.init()
    run_cases(CASES, lambda name: hvd_tf.barrier(name=name))
    hvd.shutdown()


test_initial_values_on_two_workers = reported_by_case(all_cases, CASES, 2, timeout_s=120)
