"""Dense models of dense_test.py: they train in plain TensorFlow on a CPU, and in a job on stand-in devices.

All train on the same rows: each of W workers has a part of each batch. Initial values differ between workers, so a job
has to begin with the values of worker 0.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tests.standin import plugin

tf1 = tf.compat.v1

STEPS, BATCH, WIDTH, HIDDEN = 4, 12, 5, 7
_RANDOM = np.random.default_rng(7)
X = _RANDOM.normal(size=[STEPS, BATCH, WIDTH]).astype(np.float32)
Y = np.tanh(X.sum(2, keepdims=True) + _RANDOM.normal(size=[STEPS, BATCH, 1])).astype(np.float32)
INITIAL = {
    "hidden": _RANDOM.normal(size=[WIDTH, HIDDEN]).astype(np.float32),
    "bias": np.zeros([HIDDEN], np.float32),
    "out": _RANDOM.normal(size=[HIDDEN, 1]).astype(np.float32),
}

_NO_SOFT_PLACEMENT = tf1.ConfigProto(allow_soft_placement=False)

# The variables after training. "losses" has the worker's own loss of each step. "copies" is not a result: it has the
# numbers of copies to the device and from it in the last step.
Values = dict[str, Any]


class Place(NamedTuple):
    """The place of a process: a worker of a job, or plain TensorFlow (`rank` 0 of 1, outside of a job)."""

    rank: int
    ranks: int
    in_job: bool

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the job's scope, or none for plain TensorFlow."""
        if not self.in_job:
            return contextlib.nullcontext()
        import hybridbackend.tensorflow as hb

        return hb.scope()

    @property
    def on_device(self) -> bool:
        """Whether it has a device, which plain TensorFlow has not."""
        return bool(tf.config.get_visible_devices("GPU"))

    def device(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the device of all operations."""
        return tf.device("/gpu:0" if self.on_device else "/cpu:0")

    def share(self, values: np.ndarray) -> np.ndarray:
        """Returns this worker's part of each batch; values: [STEPS, BATCH, ...]."""
        return values.reshape(STEPS, self.ranks, BATCH // self.ranks, *values.shape[2:])[:, self.rank]

    def copies(self) -> np.ndarray:
        """Returns how often a tensor was copied to the device and from it, until now."""
        done = plugin.work() if self.on_device else (0, 0)
        return np.array(done[:2])


def _variables(place: Place) -> dict[str, tf.Variable]:
    return {name: tf1.get_variable(name, initializer=value + place.rank) for name, value in INITIAL.items()}


def _loss(variables: dict[str, Any], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    hidden = tf.tanh(tf.matmul(x, variables["hidden"]) + variables["bias"])
    return tf.reduce_mean(tf.square(tf.matmul(hidden, variables["out"]) - y))


class _Fed:
    """A graph's inputs, one part of each batch."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.x = tf1.placeholder(tf.float32, [BATCH // place.ranks, WIDTH])
        self.y = tf1.placeholder(tf.float32, [BATCH // place.ranks, 1])

    def train(self, session: Any, loss: tf.Tensor, train: tf.Operation) -> Values:
        """Takes all steps; returns the losses, and the copies of the last step."""
        losses = []
        for x, y in zip(self._place.share(X), self._place.share(Y), strict=True):
            before = self._place.copies()
            losses.append(session.run([loss, train], {self.x: x, self.y: y})[0])
            copies = self._place.copies() - before
        return {"losses": np.array(losses), "copies": copies}


def wire(place: Place) -> Values:
    """Trains with gradients that travel in 16 bits, which plain TensorFlow has not."""
    if not place.in_job:
        return {}
    import hybridbackend.tensorflow as hb

    values: Values = {}
    for dtype in ("float16", "bfloat16"):
        with hb.scope(comm_gradient_wire_dtype=dtype):
            trained = session(place)
        values.update({f"{name} {dtype}": value for name, value in trained.items() if name != "copies"})
        values["copies"] = trained["copies"]
    return values


def _in_session(place: Place, minimize: Callable[[Any, tf.Tensor, tf.Tensor], tf.Operation], **options: Any) -> Values:
    """Trains in a session without soft placement."""
    with tf.Graph().as_default(), place.scope():
        with place.device():
            fed, variables = _Fed(place), _variables(place)
            loss = _loss(variables, fed.x, fed.y)
            train = minimize(loss, tf1.train.get_or_create_global_step())
        with tf1.train.MonitoredTrainingSession("", config=_NO_SOFT_PLACEMENT, **options) as session:
            trained = fed.train(session, loss, train)
            return {**trained, **session.run(variables)}


def session(place: Place) -> Values:
    return _in_session(place, lambda loss, step: tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, step))


def clipping(place: Place) -> Values:
    def minimize(loss: tf.Tensor, step: tf.Tensor) -> tf.Operation:
        optimizer = tf1.train.AdamOptimizer(0.05)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
        return optimizer.apply_gradients(zip(clipped, variables, strict=True), step)

    return _in_session(place, minimize)


def batch_normalization(place: Place) -> Values:
    with tf.Graph().as_default(), place.scope():
        with place.device():
            fed, variables = _Fed(place), _variables(place)
            x = tf.matmul(fed.x, variables["hidden"])
            mean, variance = tf.nn.moments(x, [0])
            moved = []
            for name, value in (("mean", mean), ("variance", variance)):
                variables[name] = tf1.get_variable(name, initializer=np.ones([HIDDEN], np.float32), trainable=False)
                moved.append(tf1.assign_sub(variables[name], (variables[name] - value) * 0.1))
            x = tf.nn.batch_normalization(x, mean, variance, variables["bias"], None, 1e-3)
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(x), variables["out"]) - fed.y))
            with tf.control_dependencies(moved):
                train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, tf1.train.get_or_create_global_step())
        with tf1.train.MonitoredTrainingSession("", config=_NO_SOFT_PLACEMENT) as session:
            return {**fed.train(session, loss, train), **session.run(variables)}


def early_end(place: Place) -> Values:
    """Trains until the first worker has no data: the last one has a batch less than the others."""
    # A job of one worker, and plain TensorFlow, read what all workers of a larger job read.
    mine = slice(STEPS - 1 if place.rank == place.ranks - 1 else STEPS)
    with tf.Graph().as_default(), place.scope():
        with tf.device("/cpu:0"):
            data = tf.data.Dataset.from_tensor_slices((place.share(X)[mine], place.share(Y)[mine]))
            x, y = tf1.data.make_one_shot_iterator(data).get_next()
        with place.device():
            variables = _variables(place)
            step = tf1.train.get_or_create_global_step()
            train = tf1.train.AdagradOptimizer(0.1).minimize(_loss(variables, x, y), step)
        final = _Final({**variables, "steps": step})
        with tf1.train.MonitoredTrainingSession("", config=_NO_SOFT_PLACEMENT, hooks=[final]) as session:
            while not session.should_stop():
                session.run(train)
        return final.values


class _Final(tf1.train.SessionRunHook):
    """A hook that records the values of tensors at the end."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors
        self.values: Values = {}

    def end(self, session: Any) -> None:
        self.values = session.run(self._tensors)


def metrics(place: Place) -> Values:
    """Computes the mean and the area under the curve of all workers' labels and predictions."""
    import hybridbackend.tensorflow as hb

    labels, scores = place.share(Y)[0, :, 0] > 0, 1 / (1 + np.exp(-place.share(X)[0, :, 0]))
    with tf.Graph().as_default(), place.scope(), tf1.Session() as session:
        with place.device():
            there = tf.constant(labels), tf.constant(scores)
        library = hb.metrics if place.in_job else tf1.metrics
        found = {"mean": library.mean(there[1]), "auc": library.auc(*there)}
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        return {name: session.run(update) for name, (_, update) in found.items()}


def _keras_model(rank: int, *, normalized: bool) -> Any:
    layers, constant = tf.keras.layers, tf.keras.initializers.Constant
    between = [layers.BatchNormalization()] if normalized else []
    # A bias before normalization does not change the loss: its gradient is rounding errors, which Adam scales up.
    return tf.keras.Sequential(
        [
            tf.keras.Input((WIDTH,)),
            layers.Dense(HIDDEN, use_bias=not normalized, kernel_initializer=constant(INITIAL["hidden"] + rank)),
            *between,
            layers.Activation("tanh"),
            layers.Dense(1, kernel_initializer=constant(INITIAL["out"] + rank)),
        ]
    )


def _keras_values(model: Any, history: Any) -> Values:
    on_device = {str(tf.convert_to_tensor(v).device).rpartition("device:")[2] for v in model.trainable_variables}
    values: Values = {f"weight_{i}": value for i, value in enumerate(model.get_weights())}
    return {**values, **{f"epoch's {k}": np.array(v) for k, v in history.history.items()}, "devices": on_device}


def keras_fit(place: Place) -> Values:
    """Fits with batch normalization, metrics and clipping, and evaluates."""
    x, y = place.share(X).reshape(-1, WIDTH), place.share(Y).reshape(-1, 1)
    with place.scope():
        model = _keras_model(place.rank, normalized=True)
        optimizer = tf.keras.optimizers.Adam(0.05, global_clipnorm=0.2)
        model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
        history = model.fit(x, y, BATCH // place.ranks, epochs=2, shuffle=False, verbose=0)
        evaluated = model.evaluate(x, y, BATCH // place.ranks, verbose=0)
        return {**_keras_values(model, history), "evaluated": np.array(evaluated)}


def hvd_session(place: Place) -> Values:
    import horovod.tensorflow as hvd

    def minimize(loss: tf.Tensor, step: tf.Tensor) -> tf.Operation:
        optimizer = tf1.train.AdamOptimizer(0.05)
        return (hvd.DistributedOptimizer(optimizer) if place.in_job else optimizer).minimize(loss, step)

    hooks = [hvd.BroadcastGlobalVariablesHook(0)] if place.in_job else []
    return _in_session(place._replace(in_job=False), minimize, hooks=hooks)


def hvd_tape(place: Place) -> Values:
    import horovod.tensorflow as hvd

    with place.device():
        variables = {name: tf.Variable(value + place.rank) for name, value in INITIAL.items()}
        if place.in_job:
            hvd.broadcast_variables(variables.values(), 0)

        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = _loss(variables, x, y)
            if place.in_job:
                tape = hvd.DistributedGradientTape(tape)
            for variable, gradient in zip(
                variables.values(), tape.gradient(loss, list(variables.values())), strict=True
            ):
                variable.assign_sub(0.1 * gradient)
            return loss

        losses = []
        for x, y in zip(place.share(X), place.share(Y), strict=True):
            before = place.copies()
            losses.append(step(tf.constant(x), tf.constant(y)).numpy())
            copies = place.copies() - before
        values = {name: variable.numpy() for name, variable in variables.items()}
    return {**values, "losses": np.array(losses), "copies": copies}


def hvd_keras(place: Place) -> Values:
    import horovod.tensorflow.keras as hvd

    x, y = place.share(X).reshape(-1, WIDTH), place.share(Y).reshape(-1, 1)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if place.in_job else []
    # Horovod's callback broadcasts variables after the first step, so all workers begin with the same values.
    model = _keras_model(0, normalized=False)
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer) if place.in_job else optimizer, "mse", jit_compile=False)
    history = model.fit(x, y, BATCH // place.ranks, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    values = _keras_values(model, history)
    values["losses"] = values.pop("epoch's loss")  # Horovod averages it only with a callback
    return values


# The job whose API a case uses -> the cases.
JOBS: dict[str, list[Callable[[Place], Values]]] = {
    "scope": [session, clipping, batch_normalization, early_end, metrics, wire, keras_fit],
    "horovod": [hvd_session, hvd_tape, hvd_keras],
}
if not getattr(tf.keras, "__version__", "2").startswith("3"):
    JOBS["scope"].remove(keras_fit)  # a scope of several workers trains models of Keras 3 only
CASES = {case.__name__: job for job, cases in JOBS.items() for case in cases}


def _all(cases: list[Callable[[Place], Values]], place: Place) -> dict[str, Values | str]:
    """Returns the values of each case, or the text of its error."""
    done: dict[str, Values | str] = {}
    for case in cases:
        try:
            done[case.__name__] = case(place)
        except Exception:
            done[case.__name__] = traceback.format_exc()
    return done


def plain() -> dict[str, Values | str]:
    """Trains all cases in plain TensorFlow."""
    return _all([case for cases in JOBS.values() for case in cases], Place(0, 1, in_job=False))


def in_job(job: str) -> dict[str, Values | str]:
    """Trains the cases of a job on stand-in devices, as one of its workers."""
    plugin.load()
    if job == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()
        rank, ranks = hvd.rank(), hvd.size()
    else:
        import hybridbackend.tensorflow as hb

        rank, ranks = hb.context.rank, hb.context.world_size
    return _all(JOBS[job], Place(rank, ranks, in_job=True))
