"""Passes over data in a session: steps of training or evaluation until the data ends, and their metrics.

Each worker has its own counters of metrics. They are summed over the workers when the data has ended. So a pass has one
exchange for them, for any number of steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lockstep._src.evaluation.batches import loss_or_zero, rows_of
from lockstep._src.evaluation.counters import combine_counters
from lockstep._src.graph import row_weights

_tf1 = tf.compat.v1
_COUNTERS = (_tf1.GraphKeys.LOCAL_VARIABLES, _tf1.GraphKeys.METRIC_VARIABLES)


class Loss:
    """A function of labels and outputs, like Keras' losses.

    Args:
      function: the function, or the name of one of Keras.
    """

    def __init__(self, function: Callable[[Any, Any], Any] | str) -> None:
        self.name = function if isinstance(function, str) else getattr(function, "__name__", "loss")
        self._function = tf.keras.losses.get(function) if isinstance(function, str) else function

    def __call__(self, labels: Any, outputs: Any) -> tf.Tensor:
        """Returns the mean over a batch, a scalar."""
        values = tf.convert_to_tensor(self._function(labels, outputs))
        return tf.reduce_mean(values) if values.shape.rank != 0 else values


class Measures(NamedTuple):
    """The loss and the metrics of a pass.

    Attributes:
      updates: operations that count a batch.
      values: name -> value, valid after all batches have been counted.
      counters: variables that begin at zero.
    """

    updates: list[Any]
    values: dict[str, tf.Tensor]
    counters: list[tf.Variable]


def measured(features: Any, labels: Any, outputs: Any, loss: Loss | tf.Tensor, metrics: Sequence[Any]) -> Measures:
    """Returns counters of the loss and the metrics of batches; each batch's loss is weighted by its rows.

    Args:
      features: the features of a batch.
      labels: the labels of the batch.
      outputs: the outputs of the model.
      loss: the loss, or a function of labels and outputs.
      metrics: as in `Model.compile`.

    Raises:
      TypeError: a metric is of a wrong type.
      ValueError: two metrics have the same name.
    """
    before = set(_tf1.local_variables())
    rows = rows_of(features, labels)
    weight = 1.0 if rows is None else tf.cast(rows, tf.float32)

    def mean(name: str, value: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _tf1.metrics.mean(loss_or_zero(value, features, labels), weight, name=name)

    pairs = {"loss": mean("mean_loss", loss(labels, outputs) if isinstance(loss, Loss) else loss)}
    for metric in metrics:
        name, pair = _metric(metric, labels, outputs, mean)
        if name in pairs:
            raise ValueError(f"compile: two metrics are named {name!r}, wanted different names")
        pairs[name] = pair
    counters = [v for v in _tf1.local_variables() if v not in before]
    return Measures([update for _, update in pairs.values()], {n: v for n, (v, _) in pairs.items()}, counters)


def _metric(metric: Any, labels: Any, outputs: Any, mean: Callable[..., Any]) -> tuple[str, tuple[Any, Any]]:
    """Returns name, value and update of a metric of `compile`."""
    if isinstance(metric, str) and metric.lower() == "auc":
        # Keras uses this method of summation by default.
        return "auc", _tf1.metrics.auc(labels, outputs, summation_method="careful_interpolation")
    if isinstance(metric, str) and metric in ("acc", "accuracy", "binary_accuracy"):
        return metric, _tf1.metrics.accuracy(*_classes(labels, outputs))
    if isinstance(metric, str) or (callable(metric) and not hasattr(metric, "update_state")):
        function = Loss(metric)
        return function.name, mean(function.name, function(labels, outputs))
    if not hasattr(metric, "from_config") or not hasattr(metric, "_obj_reference_counts_dict"):
        raise TypeError(
            f"compile: {metric!r} is not a metric for graphs of TensorFlow 1; wanted a name, a function or a metric "
            "of Keras 2"
        )
    # A copy has counters of its own for this pass.
    copy = type(metric).from_config(metric.get_config())
    update = copy.update_state(labels, outputs)
    for variable in copy.variables:
        for key in _COUNTERS:
            _tf1.add_to_collection(key, variable)
    return copy.name, (copy.result(), update)


def _classes(labels: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the true and the predicted classes; their shapes decide, as for Keras' 'accuracy'."""
    if outputs.shape.rank is None or outputs.shape.rank < 2 or outputs.shape.as_list()[-1] == 1:
        return tf.reshape(tf.cast(labels, tf.int64), [-1]), tf.reshape(tf.cast(outputs > 0.5, tf.int64), [-1])
    if labels.shape.rank == outputs.shape.rank and labels.shape.as_list()[-1] != 1:
        return tf.argmax(labels, -1), tf.argmax(outputs, -1)
    found = tf.argmax(outputs, -1)
    return tf.reshape(tf.cast(labels, tf.int64), tf.shape(found)), found


def feeding(inputs: Any, outputs: Any, batch: Any) -> Callable[[Any], dict[tf.Tensor, Any]]:
    """Returns a function that feeds batches of other data to a model that was built on tensors of some data.

    If the other data has the structure of the elements of the model's iterator, it replaces these elements, and passes
    through the program's own operations on them. Otherwise it must have the structure of the model's inputs.

    Args:
      inputs: the model's inputs (and labels), in a structure.
      outputs: tensors that are computed from them.
      batch: the other data's tensors.

    Returns:
      A function that takes a batch with the given session, and returns the values to feed.

    Raises:
      ValueError: the data has neither structure.
    """
    sources = tf.nest.flatten(batch, expand_composites=True)
    flat = tf.nest.flatten((inputs, outputs), expand_composites=True)
    given = tf.nest.flatten(inputs, expand_composites=True)
    for targets in (*row_weights.elements(flat), given):
        if len(targets) == len(sources) and all(
            t.dtype == s.dtype and t.shape.is_compatible_with(s.shape) for t, s in zip(targets, sources, strict=True)
        ):
            return lambda session: dict(zip(targets, session.run(sources), strict=True))
    raise ValueError(
        f"the dataset has batches of {batch}, the model was built on {inputs}; use a dataset of the same structure"
    )


class Pass:
    """A pass: steps over data.

    Args:
      restart: restarts the data; None: the pass continues in the data.
      measures: the metrics; None: there are none.
      steps: the largest number of steps; None: until the data ends.
      along: other tensors and operations that run in each step.
      feeds: see `feeding`.
    """

    def __init__(
        self,
        restart: tf.Operation | None,
        measures: Measures | None,
        steps: int | None = None,
        along: dict[str, Any] | None = None,
        feeds: Callable[[Any], dict[tf.Tensor, Any]] | None = None,
    ) -> None:
        self._restart = restart
        self._steps = steps
        self._feeds = feeds
        self._values = {} if measures is None else measures.values
        self._fetches = {**(along or {}), "measures": [] if measures is None else measures.updates}
        counters = [] if measures is None else measures.counters
        self._reset = tf.group(*(v.initializer for v in counters))
        self._combine = combine_counters(counters)

    def batches(self, session: Any, steps: int | None = None, restart: bool = True) -> Iterator[dict[str, Any]]:
        """Makes the steps, and yields the results of each."""
        if restart and self._restart is not None:
            session.run(self._restart)
        steps = self._steps if steps is None else steps
        taken = 0
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while steps is None or taken < steps:
                yield session.run(self._fetches, self._feeds and self._feeds(session))
                taken += 1

    def run(
        self,
        session: Any,
        steps: int | None = None,
        restart: bool = True,
        on_batch: Callable[[int, dict[str, Any]], None] | None = None,
    ) -> dict[str, float] | None:
        """Makes the steps.

        Args:
          session: a session of the graph.
          steps: the number of steps; None: the constructor's.
          restart: whether the data restarts.
          on_batch: called after each step with its number and its results.

        Returns:
          The metrics over the data of all workers; None if no worker has data.
        """
        session.run(self._reset)
        taken = 0
        for taken, results in enumerate(self.batches(session, steps, restart), 1):
            if on_batch is not None:
                on_batch(taken - 1, results)
        if taken == 0:
            return None
        session.run(self._combine)
        return {name: float(value) for name, value in session.run(self._values).items()}
