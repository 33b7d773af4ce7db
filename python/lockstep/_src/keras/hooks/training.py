"""`fit`, `evaluate` and `predict` of Keras 3 on all workers.

| replaced | result |
| --- | --- |
| batches | all workers take a batch, or none does: each first sends the number of rows of its next batch |
| the loss's gradient | is weighted by rows, so that the mean over workers is the mean over all rows |
| the gradient of a loss with a mask or `mean_with_sample_weight` | is weighted by the loss's divisor |
| `optimizer.apply` | exchanges gradients first (`in_scope.py`) |
| whether gradients are finite, for loss scales | is the same on all workers |
| moments of batch normalization | cover the rows of all workers |
| results of metrics, at the end of an epoch or evaluation | are computed from the counts of all workers |

This module imports Keras; a scope imports it if the program has Keras 3.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras.src import backend, tree
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.losses import loss as keras_loss
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from lockstep._src.collectives import ordered
from lockstep._src.data import sharing, sync
from lockstep._src.engine import file_errors, program_end
from lockstep._src.engine.context import context
from lockstep._src.gradients import in_scope, loss_divisors
from lockstep._src.gradients.keras_optimizers import apply_keras3
from lockstep._src.hooks import symbols
from lockstep._src.hooks.interception import Interception, around
from lockstep._src.keras.hooks import clipping, outside, resuming, stopping, table_optimizers, uneven
from lockstep._src.tables import sharded as sharding


def intercept_training(interception: Interception) -> None:
    """Makes models of Keras 3 train, evaluate and predict on the whole job during the interception."""
    interception.replace(symbols.KERAS_APPLY, around(_apply))
    interception.replace(symbols.SUPPORTS_JIT, around(_supports_jit))
    interception.replace(symbols.KERAS_CHECK_FINITE, around(_check_finite))
    clipping.intercept_clipping(interception)
    file_errors.intercept_callbacks(interception, symbols.KERAS_CALLBACKS)
    if context.world_size == 1:
        interception.replace(symbols.ENUMERATE_BATCHES, around(resuming.enumerate_alone))
        return
    step = _Step()
    interception.replace(symbols.KERAS_SCALE_LOSS, around(step.scale_loss))
    interception.replace(symbols.REDUCE_VALUES, around(_reduce_values))
    interception.replace(symbols.WEIGHTED_VALUES, around(step.reduce_weighted))
    interception.replace(symbols.KERAS_LOSS, around(step.call_loss))
    interception.replace(symbols.COMPILE_LOSS, around(step.compute_losses))
    interception.replace(symbols.MEAN_UPDATE, around(step.update_mean))
    interception.replace(symbols.ENUMERATE_BATCHES, around(step.enumerate_batches))
    for hook in symbols.KERAS_PASSES:
        interception.replace(hook, around(step.passes.begin(hook.name)))
        interception.replace(hook, around(step.run_pass))
        interception.replace(hook, around(outside.run_pass))
    for hook in symbols.BATCH_ENDS:
        in_training = hook.name == "on_train_batch_end"
        interception.replace(hook, around(step.passes.end_train_batch if in_training else step.passes.end_batch))
    interception.replace(symbols.EPOCH_END, around(step.passes.end_epoch))
    interception.replace(symbols.METRICS_RESULT, around(_results))
    interception.replace(symbols.BATCH_MOMENTS, lambda _: _moments_of_all)


# Stands for "no batch" among the numbers of rows that workers send: the exchanged tensor has numbers only.
_NO_BATCH = -1
# The rows of arrays that workers compare: enough to tell data apart, and quickly read.
_COMPARED_ROWS = 1024


class _Batch(NamedTuple):
    """A batch of this worker, and its weight: its part of the rows of all workers, times the number of workers."""

    data: Any
    weight: float


class _Step(threading.local):
    """The current step of this thread."""

    def __init__(self) -> None:
        self._weight: backend.Variable | None = None
        self._weighed: backend.Variable | None = None
        self._scaling = False
        self._in_losses = False
        self._is_unknown = False  # whether one number for a batch may be divided by something else than its rows
        self._compared = False  # whether the first batches of training have been compared
        self.passes = stopping.Passes()
        self._epochs = uneven.Epochs()

    @property
    def weight(self) -> backend.Variable:
        """The weight of this worker's loss in the mean over workers; 1 outside of `fit`."""
        if self._weight is None:
            self._weight = _scalar(tf.ones, "weight_of_batch")
        return self._weight

    @property
    def weighed(self) -> backend.Variable:
        """1 if this step has multiplied a loss by `weight`, or 0; the program's `train_step` may omit `scale_loss`.

        It is a variable, because the gradient of a loss in a `tf.function` of its own is traced before `scale_loss`.
        """
        if self._weighed is None:
            self._weighed = _scalar(tf.zeros, "loss_is_weighed")
        return self._weighed

    def weight_of_loss(self, _: tf.Tensor) -> tf.Tensor:
        """Returns the factor by which this step has multiplied the loss: `weight`, or 1."""
        weight = tf.convert_to_tensor(self.weight.value)
        return tf.where(self.weighed.value > 0, weight, tf.ones_like(weight))

    def enumerate_batches(self, _: Any, epoch: Any) -> Iterator[tuple[int, int, Iterator[Any]]]:
        """Yields (first step, last step, iterator over their batches), in place of a method of Keras' `epoch`."""
        epoch.data_adapter.on_epoch_begin()
        if context.options.mode == "train":
            resuming.begin_epoch(epoch.steps_per_epoch)
        # With `steps_per_epoch`, an epoch continues where the previous one ended.
        # Keras' `epoch.num_batches` would be the previous epoch's number, if the data's number is unknown.
        of_data = epoch.data_adapter.num_batches if epoch.steps_per_epoch is None else None
        if epoch._current_iterator is None or epoch.steps_per_epoch is None:
            epoch._current_iterator = iter(epoch._get_iterator())
        adapter, begin = epoch.data_adapter, 0
        while epoch.steps_per_epoch is None or begin < epoch.steps_per_epoch:
            wanted = epoch.steps_per_execution
            if epoch.steps_per_epoch is not None:
                wanted = min(wanted, epoch.steps_per_epoch - begin)
            batches: list[Any] = []
            while len(batches) < wanted:
                batch = self.next_of_all(epoch._current_iterator, adapter, begin + len(batches), of_data)
                if batch is None:
                    break
                batches.append(batch)
            if batches:
                epoch._steps_seen = begin + len(batches)
                yield begin, begin + len(batches) - 1, self.one_by_one(batches)
                self._reset()
                begin += len(batches)
            if len(batches) < wanted:
                epoch._current_iterator = None
                break
        epoch._num_batches = begin
        epoch.data_adapter.on_epoch_end()

    def next_of_all(self, iterator: Any, adapter: Any, taken: int, of_data: int | None) -> _Batch | None:
        """Returns the next batch of this worker.

        The batch has no rows if this worker's data has ended and other workers still have batches. The result is None
        if all workers stop.

        Args:
          iterator: the iterator of this worker's data.
          adapter: Keras' adapter of this data.
          taken: the number of batches that this epoch has had.
          of_data: the number of batches of an epoch of this worker's data; None if it isn't known.
        """
        this = self.passes.innermost
        mine = iterator.get_next_as_optional()
        batch = mine.get_value() if mine.has_value() else None
        is_first = not self._compared and context.options.mode == "train"
        compared = sharing.NOTHING if batch is None or not is_first else _fingerprint(batch, adapter)
        # The number of rows, or _NO_BATCH; whether a callback requested the end; the first batch's fingerprint; the
        # number of batches of an epoch.
        batches = uneven.UNKNOWN if of_data is None else of_data
        sent = [[_NO_BATCH if batch is None else _rows(batch), int(this is not None and this.asked), compared, batches]]
        all_sent = ordered.allgather(tf.constant(sent, tf.int64), name="rows_of_batches").numpy()
        rows, asked = all_sent[:, 0], all_sent[:, 1]
        if is_first:
            self._compared = True
            sharing.compare([all_sent[:, 2]])
        if this is not None:
            this.agree(asked.any())
        until_the_last = context.options.mode == "eval" or not context.options.data_sync_drop_remainder
        ended = rows == _NO_BATCH
        if asked.any() or ended.all() or (not until_the_last and ended.any()):
            if ended.any() and not ended.all():
                # If a worker still has data, its `batch` is the usual remainder. The epoch drops the iterator.
                self._epochs.warn(
                    taken,
                    all_sent[:, 3].tolist(),
                    lambda: batch is not None and bool(iterator.get_next_as_optional().has_value()),
                )
            return None
        if batch is None:
            batch = tree.map_structure(lambda spec: sync.empty(spec), iterator.element_spec)
        rows = np.where(ended, 0, rows)
        total = rows.sum()
        return _Batch(batch, rows[context.rank] * context.world_size / total if total else 1.0)

    def one_by_one(self, batches: list[_Batch]) -> Iterator[Any]:
        """Yields the batches' data; while one is used, `weight` has its weight.

        Keras drops this generator before it ends. So it must not reset the weight: Python would then close it in a
        destructor, where an interrupt of the user is lost.
        """
        for batch in batches:
            self.weight.assign(batch.weight)
            self.weighed.assign(0.0)
            yield batch.data

    def run_pass(self, method: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a model's `fit`, `evaluate` or `predict`; the weight is 1 afterwards, also if a step fails."""
        try:
            return method(model, *args, **kwargs)
        finally:
            self._reset()

    def _reset(self) -> None:
        if self._weight is not None:
            self._weight.assign(1.0)

    def scale_loss(self, scale_loss: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
        """Weighs the loss of which Keras takes the gradient; only the outermost of nested optimizers does so."""
        if self._scaling:
            return scale_loss(optimizer, loss)
        self._scaling = True
        try:
            loss = tf.convert_to_tensor(loss)
            self.weighed.assign(1.0)
            return scale_loss(optimizer, loss * tf.cast(self.weight.value, loss.dtype))
        finally:
            self._scaling = False

    def reduce_weighted(
        self,
        reduce: Callable[..., Any],
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        """Reduces a batch's losses, whose gradient is weighted by their divisor."""
        loss = reduce(values, sample_weight, mask, reduction, dtype)
        if tf.convert_to_tensor(values).shape.rank == 0:  # divided already; a mask's factors then have the mean 1
            if self._in_losses and self._is_unknown and reduction not in (None, "none", "sum"):
                loss_divisors.warn_of_unknown_divisor()
            return loss
        divisor = _divisor(sample_weight, mask, reduction, loss.dtype)
        return loss if divisor is None else loss_divisors.counting_by(divisor, loss, self.weight_of_loss)

    def call_loss(
        self, call: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Computes a loss, and records whether its function may use any divisor for a batch.

        Keras' own functions are means over the last axis. For predictions [rows] this is one number, the mean of rows.
        """
        outer, self._is_unknown = self._is_unknown, not _is_of_keras(loss) or _rank(y_pred) > 1
        try:
            return call(loss, y_true, y_pred, *args, **kwargs)
        finally:
            self._is_unknown = outer

    def compute_losses(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Computes the losses of a model's outputs, and weights their means by rows."""
        self._in_losses = True
        try:
            return call(*args, **kwargs)
        finally:
            self._in_losses = False

    def update_mean(self, update_state: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
        """Updates a `Mean` with the weight that Keras omits if a graph does not know the number of rows."""
        if self._in_losses and sample_weight is None:
            sample_weight = self.weight.value
        return update_state(metric, values, sample_weight)


def _scalar(initial: Callable[..., tf.Tensor], name: str) -> backend.Variable:
    """Returns a variable that only this worker has."""
    return backend.Variable(
        lambda shape, dtype: initial(shape, dtype),
        shape=(),
        dtype="float32",
        trainable=False,
        autocast=False,
        synchronization="on_read",
        name=name,
    )


def _supports_jit(supports_jit: Callable[..., Any], model: Any) -> bool:
    """Returns whether XLA can compile a model; it can compile neither exchanges nor lookups in tables."""
    has_table = any(sharding.is_sharded(getattr(v, "_value", v)) for v in model.variables)
    return context.world_size == 1 and not has_table and supports_jit(model)


def _is_of_keras(loss: Any) -> bool:
    """Returns whether a loss computes with a function of Keras."""
    functions = [type(loss).call, getattr(loss, "fn", None)]
    return all(f is None or getattr(f, "__module__", "").startswith("keras.src.losses") for f in functions)


def _rank(predictions: Any) -> int:
    shapes = [leaf.shape for leaf in tree.flatten(predictions) if hasattr(leaf, "shape")]
    return max((tf.TensorShape(shape).rank or 0 for shape in shapes), default=0)


def _divisor(sample_weight: Any, mask: Any, reduction: Any, dtype: Any) -> tf.Tensor | None:
    """Returns what the loss of a batch is divided by, up to a constant factor; None for its rows, or for nothing."""
    if reduction == "mean_with_sample_weight":
        given = [None if part is None else tf.cast(part, dtype) for part in (sample_weight, mask)]
        weights = keras_loss.apply_mask(*given, dtype=dtype, reduction=reduction)
        return None if weights is None else tf.reduce_sum(weights)
    if mask is None or reduction not in ("mean", "sum_over_batch_size"):
        return None
    return tf.reduce_sum(tf.cast(mask, dtype))


def _reduce_values(
    reduce_values: Callable[..., Any], values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
) -> Any:
    """Reduces a batch's losses; the loss of no rows is 0, where Keras returns an empty vector."""
    reduced = reduce_values(values, sample_weight, reduction)
    no_rows = tuple(reduced.shape) == (0,) and reduction not in (None, "none")
    return tf.reduce_sum(reduced) if no_rows else reduced


def _fingerprint(batch: Any, adapter: Any) -> int:
    """Returns the number by which workers compare their data; `sharing.NOTHING` for a share of the job's data."""
    if sharing.is_share(getattr(adapter, "_dataset", None)):
        return sharing.NOTHING
    given = _first_rows(adapter)
    return sharing.fingerprint(batch if given is None else given)


def _first_rows(adapter: Any) -> Any:
    """Returns the number of rows and the first rows of arrays that `fit` was given; None for data of other kinds.

    Keras shuffles arrays, on each worker in another order. So equal arrays have different first batches.
    """
    if not isinstance(adapter, ArrayDataAdapter):
        return None
    arrays = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="numpy")
    rows = [part.convert_to_numpy(part[:_COMPARED_ROWS]) for part in tree.flatten(arrays) if part is not None]
    if not all(isinstance(part, np.ndarray) for part in rows):
        return None
    return [tf.constant(adapter._num_samples), *map(tf.convert_to_tensor, rows)]


def _rows(batch: Any) -> int:
    for leaf in tf.nest.flatten(batch):
        if isinstance(leaf, tf.SparseTensor):
            return int(leaf.dense_shape[0])
        if isinstance(leaf, tf.RaggedTensor):
            return int(leaf.nrows())
        if tf.is_tensor(leaf) and leaf.shape.rank:
            return int(tf.shape(leaf)[0])
    raise ValueError(
        f"got a batch without a tensor that has rows ({tf.nest.map_structure(type, batch)}), wanted tensors [rows, ...]"
    )


def _results(get_results: Callable[..., Any], self: Any, logs: Any) -> Any:
    with _counts_of_all([v for metric in self.metrics for v in metric.variables]):
        return get_results(self, logs)


@contextlib.contextmanager
def _counts_of_all(variables: list[Any]) -> Iterator[None]:
    """Gives metrics' variables inside the block the values that one worker with all data would have counted."""
    by_kind: dict[tuple[str, str], list[Any]] = {}
    for v in {id(v): v for v in variables}.values():
        if v.aggregation in ("sum", "mean"):
            by_kind.setdefault((v.aggregation, v.dtype), []).append(v)
    reduced: list[tuple[Any, tf.Tensor]] = []
    for (op, dtype), group in by_kind.items():
        values = ordered.allreduce([tf.convert_to_tensor(v.value) for v in group], op=op, name=f"metrics_{dtype}")
        reduced += zip(group, values, strict=True)
    with StatelessScope(state_mapping=reduced):
        yield


def _moments_of_all(layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance over the rows of all workers' batches, for batch normalization.

    Args:
      layer: the `BatchNormalization` layer.
      inputs: [B, ..., C].
      mask: [B, ...], true for the values that count; None: all count.
    """
    axes, epsilon = layer._reduction_axes, 0.0
    weights = tf.ones_like(inputs)
    if mask is not None:
        weights *= tf.cast(tf.cast(mask, tf.bool)[..., tf.newaxis], inputs.dtype)
        epsilon = backend.epsilon()

    def summed(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values * weights, axes, keepdims=True)

    count, total = ordered.allreduce([summed(weights), summed(inputs)], op="sum", name="moments_mean")
    mean = tf.math.divide_no_nan(total, count + epsilon)
    squares = ordered.allreduce(summed(tf.square(inputs - mean)), op="sum", name="moments_variance")
    variance = tf.math.divide_no_nan(squares, count + epsilon)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _apply(apply: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Applies the means of the gradients over the workers.

    The outermost of nested optimizers exchanges: a `LossScaleOptimizer` calls its inner optimizer only if this worker's
    gradients are finite.
    """
    if outside.exchanging.value:
        return apply(optimizer, grads, trainable_variables)

    def update(gradients: list[Any], variables: list[Any], apply_all: Callable[..., Any]) -> Any:
        made = variables
        variables = [getattr(v, "_value", v) for v in variables]
        if context.world_size > 1:
            optimizers = [table_optimizers.own_optimizer(v) or optimizer for v in variables]
            sharded = {id(o): o for o, v in zip(optimizers, variables, strict=True) if sharding.is_sharded(v)}
            for applying in sharded.values():
                _check_can_shard(applying)
            outside.begin_as_worker_0s([*made, *optimizer.variables])
        exchanged = in_scope.exchange().exchange(gradients, variables)
        program_end.counts_steps(optimizer)
        with outside.exchanging.holding(True):
            return apply_all(exchanged)

    return apply_keras3(optimizer, functools.partial(apply, optimizer), grads, trainable_variables, update)


# Optimizers of Keras that compute with a whole variable; a worker has only a part of a sharded one.
_NEED_WHOLE_VARIABLES = ("Adafactor", "Lamb", "Muon")


def _check_can_shard(optimizer: Any) -> None:
    """Raises NotImplementedError for an optimizer, or one inside of it, that cannot apply gradients of a shard."""
    inner = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    if inner is not None:
        _check_can_shard(inner)
    if any(cls.__name__ in _NEED_WHOLE_VARIABLES for cls in type(optimizer).__mro__):
        raise NotImplementedError(
            f"{optimizer.name}: not implemented for sharded tables, because it computes norms or means of a whole "
            "variable, whose rows are on all workers; use another optimizer, or do not shard tables"
        )
    if getattr(optimizer, "use_ema", False):
        raise NotImplementedError(f"{optimizer.name}: use_ema is not implemented for sharded tables")


def _check_finite(check_finite: Callable[..., Any], optimizer: Any, grads: Any) -> tf.Tensor:
    """Returns whether the gradients of all workers are finite; gradients of sharded tables differ between workers."""
    finite = check_finite(optimizer, grads)
    if context.world_size == 1:
        return finite
    return tf.cast(ordered.allreduce(tf.cast(finite, tf.int32), op="min", name="all_finite"), tf.bool)
