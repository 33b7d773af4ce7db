"""Streaming metrics over the data of all workers, for graphs.

Each metric keeps counters in local variables, as the metrics of `tf.compat.v1.metrics` do. An update packs the amounts
that this worker's batch adds into one tensor, sums it over all workers in one collective, and adds the sum to the
counters. The counters, and the value computed from them, are therefore the same on every worker, and reading the value
needs no communication. A worker with an empty batch adds zeros.

The counters are float64, so that counts of samples are exact for any number of workers. TensorFlow's are float32, which
counts exactly only up to 2**24 samples.

Shapes: labels have any shape [...]; N is the number of its elements, T the number of thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops

_tf1 = tf.compat.v1

# Keeps ratios defined if a class has no samples. tf.compat.v1.metrics.auc uses the same value.
_EPSILON = 1e-6
# The distance of the first and last threshold from [0, 1], so that no prediction equals them.
_MARGIN = 1e-7


def accuracy(
    labels: tf.Tensor,
    predictions: tf.Tensor,
    weights: tf.Tensor | None = None,
    metrics_collections: Sequence[str] | None = None,
    updates_collections: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes how often predictions match labels, over all workers; follows `tf.compat.v1.metrics.accuracy`.

    Creates two local variables, `total` (sum of the weights of the matches) and `count` (sum of all weights).

    Args:
      labels: the truth, of any shape [...].
      predictions: of the same shape. If only one of the two has a last dimension of 1, it is dropped.
      weights: of rank 0 or the rank of `labels`, broadcastable to it; None is 1.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      name: the name of the variable scope.

    Returns:
      (value, update): float32 scalars. `value` is total / count, or 0 without data. All workers must run `update`
      together; it adds one batch of each worker and returns the new value.

    Raises:
      ValueError: shapes of labels, predictions and weights do not fit, or collections are not a list or tuple.
      RuntimeError: eager execution is on.
    """
    _check_arguments("accuracy", metrics_collections, updates_collections)
    with _tf1.variable_scope(name, "accuracy", (predictions, labels, weights)):
        labels, predictions, weights = _flatten(labels, predictions, weights)
        if predictions.dtype != labels.dtype:
            predictions = tf.cast(predictions, labels.dtype)
        matches = tf.cast(tf.equal(predictions, labels), tf.float64)
        added = tf.stack([tf.reduce_sum(matches * weights), tf.reduce_sum(weights)])
        return _ratio(added, metrics_collections, updates_collections)


def mean(
    values: tf.Tensor,
    weights: tf.Tensor | None = None,
    metrics_collections: Sequence[str] | None = None,
    updates_collections: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the (weighted) mean of values, over all workers; follows `tf.compat.v1.metrics.mean`.

    Creates two local variables, `total` (sum of values times weights) and `count` (sum of all weights).

    Args:
      values: numbers or bools, of any shape [...].
      weights: of rank 0 or the rank of `values`, broadcastable to it; None is 1.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      name: the name of the variable scope.

    Returns:
      (value, update): float32 scalars. `value` is total / count, or 0 without data. All workers must run `update`
      together; it adds one batch of each worker and returns the new value.

    Raises:
      ValueError: shapes of values and weights do not fit, or collections are not a list or tuple.
      RuntimeError: eager execution is on.
    """
    _check_arguments("mean", metrics_collections, updates_collections)
    with _tf1.variable_scope(name, "mean", (values, weights)):
        values, _, weights = _flatten(values, values, weights)
        values = tf.cast(values, tf.float64)
        added = tf.stack([tf.reduce_sum(values * weights), tf.reduce_sum(weights)])
        return _ratio(added, metrics_collections, updates_collections)


def gauc(
    labels: tf.Tensor,
    predictions: tf.Tensor,
    indicators: tf.Tensor | None = None,
    metrics_collections: Sequence[str] | None = None,
    updates_collections: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the mean AUC of groups (such as users), weighted by their numbers of samples, over all workers.

    The function follows HybridBackend's `gauc`. A group is a run of neighboring samples in a batch with equal
    indicators. The data must therefore be sorted by the indicators, or at least grouped by them. A group that continues
    in the next batch counts as two groups. Groups whose samples are all positive or all negative have no AUC and are
    left out. The AUC of a group is exact; ties count half. For the measure see Zhou et al., "Deep Interest Network for
    Click-Through Rate Prediction", 2018.

    Creates two local variables, `total` (sum of samples times AUC) and `count` (number of samples).

    Args:
      labels: the truth, of any shape [...]; cast to bool. If `indicators` have shape [N], labels may have shape [N, 2]
        for models with one output per class; the last column is then used.
      predictions: numbers of the same shape; a higher number means more likely positive. Only their order matters.
      indicators: integers of the same shape (or [N], see `labels`) that name the groups. None: each batch of a worker
        is one group.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      name: the name of the variable scope.

    Returns:
      (value, update): float32 scalars. `value` is total / count, or 0 if no group counts. All workers must run `update`
      together; it adds one batch of each worker and returns the new value. If a prediction is NaN, the update fails
      with InvalidArgumentError.

    Raises:
      ValueError: shapes of labels, predictions and indicators do not fit, or collections are not a list or tuple.
      TypeError: indicators are not integers.
      RuntimeError: eager execution is on.
    """
    _check_arguments("gauc", metrics_collections, updates_collections)
    with _tf1.variable_scope(name, "gauc", (labels, predictions, indicators)):
        labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
        if indicators is not None:
            indicators = tf.convert_to_tensor(indicators)
            if not indicators.dtype.is_integer:
                raise TypeError(f"gauc: indicators are {indicators.dtype.name}, wanted integers")
            if indicators.shape.rank == 1:
                labels, predictions = _second_of_two(labels), _second_of_two(predictions)
        labels, predictions, _ = _flatten(labels, predictions, None)
        groups = tf.zeros_like(labels, tf.int64)
        if indicators is not None:
            groups = tf.reshape(tf.cast(indicators, tf.int64), [-1])
            if not groups.shape.is_compatible_with(labels.shape):
                counts = [tf.compat.dimension_value(tensor.shape[0]) for tensor in (groups, labels)]
                raise ValueError("gauc: {} indicators do not match {} labels".format(*counts))
        added = ops.lockstep_grouped_auc(tf.cast(labels, tf.bool), tf.cast(predictions, tf.float64), groups)
        return _ratio(added, metrics_collections, updates_collections)


def _second_of_two(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the last column [N] of a tensor [N, 2]; returns other tensors unchanged."""
    return tensor[:, 1] if tensor.shape.rank == 2 and tf.compat.dimension_value(tensor.shape[1]) == 2 else tensor


def _ratio(
    added: tf.Tensor, metrics_collections: Sequence[str] | None, updates_collections: Sequence[str] | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Builds the metric total / count; this worker's batch adds `added`, [2] float64, to total and count."""
    total, count = _counter("total", ()), _counter("count", ())
    update_counters = _add_all([total, count], tf.unstack(_sum_over_workers(added)))
    return _value_and_update(
        [total, count], update_counters, tf.math.divide_no_nan, metrics_collections, updates_collections
    )


def auc(
    labels: tf.Tensor,
    predictions: tf.Tensor,
    weights: tf.Tensor | None = None,
    num_thresholds: int = 200,
    metrics_collections: Sequence[str] | None = None,
    updates_collections: Sequence[str] | None = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
) -> tuple[tf.Tensor, tf.Tensor]:
    """Approximates the area under the ROC or precision-recall curve, over all workers.

    Follows `tf.compat.v1.metrics.auc`. Creates four local variables of shape [T], `true_positives`, `false_positives`,
    `true_negatives` and `false_negatives`. They hold, for each threshold, the sum of the weights of the samples of each
    kind; a prediction above the threshold counts as positive. The approximation is good if predictions spread over
    [0, 1]; 'minoring' and 'majoring' bound its error.

    Args:
      labels: the truth, of any shape [...]; cast to bool.
      predictions: floats in [0, 1], of the same shape. If only one of the two has a last dimension of 1, it is dropped.
      weights: of rank 0 or the rank of `labels`, broadcastable to it; None is 1.
      num_thresholds: T, at least 2; the thresholds are evenly spaced over [0, 1], including both ends.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      curve: 'ROC' (recall over false positive rate) or 'PR' (precision over recall).
      name: the name of the variable scope.
      summation_method: 'trapezoidal'; 'careful_interpolation' (for ROC the same as trapezoidal; for PR it interpolates
        true and false positives, not their ratio); 'minoring' or 'majoring' (uses the lower or the higher end of each
        interval).

    Returns:
      (value, update): float32 scalars. All workers must run `update` together; it adds one batch of each worker and
      returns the new value. If a prediction is not in [0, 1], the update fails with InvalidArgumentError.

    Raises:
      ValueError: shapes of labels, predictions and weights do not fit, collections are not a list or tuple, or `curve`,
        `summation_method` or `num_thresholds` is invalid.
      RuntimeError: eager execution is on.
    """
    _check_arguments("auc", metrics_collections, updates_collections)
    if curve not in ("ROC", "PR"):
        raise ValueError(f"auc: curve is {curve!r}, wanted 'ROC' or 'PR'")
    if summation_method not in _AREAS:
        raise ValueError(f"auc: summation_method is {summation_method!r}, wanted one of {sorted(_AREAS)}")
    if num_thresholds < 2:
        raise ValueError(f"auc: num_thresholds is {num_thresholds}, wanted at least 2")

    def area(tp: tf.Tensor, fp: tf.Tensor, tn: tf.Tensor, fn: tf.Tensor) -> tf.Tensor:
        if curve == "PR" and summation_method == "careful_interpolation":
            return _interpolated_pr_area(tp, fp, fn)
        recall = (tp + _EPSILON) / (tp + fn + _EPSILON)
        if curve == "ROC":
            return _AREAS[summation_method](fp / (fp + tn + _EPSILON), recall)
        return _AREAS[summation_method](recall, (tp + _EPSILON) / (tp + fp + _EPSILON))

    with _tf1.variable_scope(name, "auc", (predictions, labels, weights)):
        labels, predictions, weights = _flatten(labels, predictions, weights)
        histogram = _sum_over_workers(_histogram(labels, predictions, weights, num_thresholds))
        names = ("true_positives", "false_positives", "true_negatives", "false_negatives")
        counters = [_counter(counter, (num_thresholds,)) for counter in names]
        update_counters = _add_all(counters, _confusion(histogram))
        return _value_and_update(counters, update_counters, area, metrics_collections, updates_collections)


def _histogram(labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, num_thresholds: int) -> tf.Tensor:
    """Returns the weights of negative [0] and positive [1] samples by the number of thresholds below them.

    The result, [2, T + 1] float64, holds the same information as the four counters in half the size. It costs N log T
    steps; comparing each sample with each threshold would cost N T.
    """
    in_range = "auc: predictions must be in [0, 1]"
    checks = [
        _tf1.debugging.assert_greater_equal(predictions, tf.zeros([], predictions.dtype), message=in_range),
        _tf1.debugging.assert_less_equal(predictions, tf.ones([], predictions.dtype), message=in_range),
    ]
    with tf.control_dependencies(checks):
        predictions = tf.cast(tf.identity(predictions), tf.float32)  # a cast to the same type adds no operation
    inner = [i / (num_thresholds - 1) for i in range(1, num_thresholds - 1)]
    thresholds = tf.constant([-_MARGIN, *inner, 1.0 + _MARGIN], tf.float32)
    below = tf.searchsorted(thresholds, predictions, side="left")
    bins = num_thresholds + 1
    bin_of = below + bins * tf.cast(tf.cast(labels, tf.bool), tf.int32)
    return tf.reshape(tf.math.unsorted_segment_sum(weights, bin_of, 2 * bins), [2, bins])


def _confusion(histogram: tf.Tensor) -> list[tf.Tensor]:
    """Converts `_histogram`'s [2, T + 1] to true positives, false positives, true negatives, false negatives, each [T].

    A sample is above threshold t if more than t thresholds are below it.
    """
    above = tf.cumsum(histogram, axis=1, reverse=True)[:, 1:]
    below = tf.cumsum(histogram, axis=1)[:, :-1]
    return [above[1], above[0], below[0], below[1]]


def _riemann(height: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function that sums, over intervals, the width x[t] - x[t + 1] times a height from both ends.

    The widths are positive because x falls as the threshold grows.
    """
    return lambda x, y: tf.reduce_sum((x[:-1] - x[1:]) * height(y[:-1], y[1:]))


_TRAPEZOIDAL = _riemann(lambda left, right: (left + right) / 2)
_AREAS = {
    "trapezoidal": _TRAPEZOIDAL,
    "careful_interpolation": _TRAPEZOIDAL,  # only for the ROC curve; PR uses _interpolated_pr_area
    "minoring": _riemann(tf.minimum),
    "majoring": _riemann(tf.maximum),
}


def _interpolated_pr_area(tp: tf.Tensor, fp: tf.Tensor, fn: tf.Tensor) -> tf.Tensor:
    """Computes the area under precision over recall.

    Follows Davis and Goadrich, "The Relationship Between PR and ROC Curves", 2006. Let p be the number of samples that
    are predicted positive. Between two thresholds, true positives grow linearly with p: tp = slope * p + intercept. The
    integral of the precision tp / p over tp is then slope * (difference of tp + intercept * log of the ratio of p).
    Dividing it by the number of positive samples gives the area over recall.
    """
    positive = tp + fp
    high, low = positive[:-1], positive[1:]
    gained = tp[:-1] - tp[1:]
    slope = tf.math.divide_no_nan(gained, tf.maximum(high - low, 0))
    intercept = tp[1:] - slope * low
    # Without positives at the lower end, the precision is constant over the interval.
    ratio = tf.where((high > 0) & (low > 0), tf.math.divide_no_nan(high, tf.maximum(low, 0)), tf.ones_like(high))
    area = slope * (gained + intercept * tf.math.log(ratio))
    return tf.reduce_sum(tf.math.divide_no_nan(area, tf.maximum(tp[1:] + fn[1:], 0)))


def _check_arguments(metric: str, metrics_collections: object, updates_collections: object) -> None:
    if tf.executing_eagerly():
        raise RuntimeError(f"{metric}: metrics are made for graphs; eager execution is on")
    arguments = {"metrics_collections": metrics_collections, "updates_collections": updates_collections}
    for argument, collections in arguments.items():
        if collections is not None and not isinstance(collections, (list, tuple)):
            raise ValueError(f"{metric}: {argument} is {collections!r}, wanted a list or tuple of collections")


def _flatten(
    labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Checks that the shapes fit, and returns labels, predictions and float64 weights as [N]."""
    labels, predictions = tf.convert_to_tensor(labels), tf.convert_to_tensor(predictions)
    labels, predictions = _squeeze_last(labels, predictions), _squeeze_last(predictions, labels)
    if not labels.shape.is_compatible_with(predictions.shape):
        raise ValueError(f"labels of shape {labels.shape} and predictions of shape {predictions.shape} do not match")
    shape = tf.shape(labels)
    same = _tf1.debugging.assert_equal(shape, tf.shape(predictions), message="labels and predictions do not match")
    if weights is None:
        weights = tf.ones(shape, tf.float64)
        checks = [same]
    else:
        weights = tf.cast(weights, tf.float64)
        weights = _squeeze_last(weights, labels)
        _check_weights(weights.shape, labels.shape)
        fits = tf.equal(tf.rank(weights), 0) | tf.equal(tf.rank(weights), tf.rank(labels))
        checks = [
            same,
            _tf1.debugging.Assert(fits, ["rank of weights and labels do not match", tf.shape(weights), shape]),
        ]
    with tf.control_dependencies(checks):
        labels = tf.identity(labels)
    weights = tf.broadcast_to(weights, shape)
    return tuple(tf.reshape(tensor, [-1]) for tensor in (labels, predictions, weights))


def _squeeze_last(tensor: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Drops the last dimension of `tensor` if `other` lacks only this one, and its size is (or may be) 1."""
    rank, other_rank = tensor.shape.rank, other.shape.rank
    if rank and other_rank and rank == other_rank + 1 and tensor.shape.as_list()[-1] in (1, None):
        return tf.squeeze(tensor, [-1])
    return tensor


def _check_weights(weights: tf.TensorShape, labels: tf.TensorShape) -> None:
    if weights.rank in (0, None) or labels.rank is None:
        return
    fits = weights.rank == labels.rank and all(
        have in (1, None) or want in (have, None)
        for have, want in zip(weights.as_list(), labels.as_list(), strict=True)
    )
    if not fits:
        raise ValueError(f"weights of shape {weights} cannot be broadcast to labels of shape {labels}")


def _sum_over_workers(added: tf.Tensor) -> tf.Tensor:
    """Returns the sum of `added` over all workers, in the order of their ranks. One worker needs no engine for it."""
    if context.world_size == 1:
        return added
    return ordered.allreduce(added, op="sum", name="sum_over_workers")


def _counter(name: str, shape: tuple[int, ...]) -> tf.Variable:
    """Creates a counter. It is local (not in checkpoints) and not trainable (scopes neither shard nor broadcast it)."""
    keys = _tf1.GraphKeys
    return _tf1.Variable(
        lambda: tf.zeros(shape, tf.float64),
        trainable=False,
        collections=[keys.LOCAL_VARIABLES, keys.METRIC_VARIABLES],
        use_resource=True,
        name=name,
    )


def _add_all(counters: Sequence[tf.Variable], added: Sequence[tf.Tensor]) -> list[tf.Operation]:
    return [counter.assign_add(value, read_value=False) for counter, value in zip(counters, added, strict=True)]


def _value_and_update(
    counters: Sequence[tf.Variable],
    update_counters: Sequence[tf.Operation],
    function: Callable[..., tf.Tensor],
    metrics_collections: Sequence[str] | None,
    updates_collections: Sequence[str] | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the metric, a `function` of its counters, before the update and after it."""
    value = tf.cast(function(*(counter.read_value() for counter in counters)), tf.float32, name="value")
    with tf.control_dependencies(update_counters):
        update = tf.cast(function(*(counter.read_value() for counter in counters)), tf.float32, name="update_op")
    for collections, tensor in ((metrics_collections, value), (updates_collections, update)):
        for collection in collections or ():
            _tf1.add_to_collection(collection, tensor)
    return value, update
