"""Streaming metrics over the data of all workers, for graphs.

Each metric keeps counters in local variables, as those of `tf.compat.v1.metrics` do. An update packs what this worker's
batch adds to them into one tensor, sums it over all workers in one collective, and adds the sum. So the counters, and
the value computed from them, are the same on every worker, and reading the value needs no communication. A worker whose
batch is empty adds zeros.

The counters are float64 (TensorFlow's are float32, which stops counting exactly at 2**24 samples): counts of samples
are exact, whatever the number of workers.

Shapes: any shape [...] of labels; N is the number of its elements, T the number of thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context
from lockstep._src.engine.library import ops

_tf1 = tf.compat.v1

# Keeps ratios defined where a class has no samples; the value is that of tf.compat.v1.metrics.auc.
_EPSILON = 1e-6
# How far the first and last threshold lie outside of [0, 1], so that no prediction falls on them.
_MARGIN = 1e-7


def accuracy(
    labels: tf.Tensor,
    predictions: tf.Tensor,
    weights: tf.Tensor | None = None,
    metrics_collections: Sequence[str] | None = None,
    updates_collections: Sequence[str] | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """How often predictions match labels, over all workers; after `tf.compat.v1.metrics.accuracy`.

    Makes two local variables, `total` (weights of the matches) and `count` (all weights).

    Args:
      labels: the truth, of any shape [...].
      predictions: what was predicted, of the same shape. A last dimension of 1 that only one of the two has is dropped.
      weights: of rank 0 or the rank of `labels`, broadcastable to it; None is 1.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      name: of the variable scope.

    Returns:
      (value, update): float32 scalars. `value` is total / count, or 0 without data; running `update`, which all workers
      must do together, adds a batch of each worker and gives the new value.

    Raises:
      ValueError: shapes of labels, predictions and weights do not fit, or collections are no list or tuple.
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
    """The (weighted) mean of values, over all workers; after `tf.compat.v1.metrics.mean`.

    Makes two local variables, `total` (values times weights) and `count` (all weights).

    Args:
      values: numbers or bools, of any shape [...].
      weights: of rank 0 or the rank of `values`, broadcastable to it; None is 1.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      name: of the variable scope.

    Returns:
      (value, update): float32 scalars. `value` is total / count, or 0 without data; running `update`, which all workers
      must do together, adds a batch of each worker and gives the new value.

    Raises:
      ValueError: shapes of values and weights do not fit, or collections are no list or tuple.
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
    """The mean of the AUCs of groups, such as users, weighted by their samples, over all workers.

    After HybridBackend's `gauc`. A group is a run of samples in a batch with equal indicators, so data has to come
    sorted (or at least gathered) by them; what a batch ends within is two groups. Groups whose samples are all positive
    or all negative have no AUC and are left out. The AUC of a group is exact; ties count half. The measure: Zhou et
    al., "Deep Interest Network for Click-Through Rate Prediction", 2018.

    Makes two local variables, `total` (samples times AUC) and `count` (samples).

    Args:
      labels: the truth, of any shape [...]; cast to bool. With `indicators` of shape [N] also [N, 2], whose last column
        counts, for models with an output for each class.
      predictions: numbers, of the same shape, higher for what is more likely positive. Only their order matters.
      indicators: integers of the same shape (or [N], see `labels`), the groups; None: a batch of a worker is one group.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      name: of the variable scope.

    Returns:
      (value, update): float32 scalars. `value` is total / count, or 0 without a group that counts; running `update`,
      which all workers must do together, adds a batch of each worker and gives the new value. An update with a
      prediction that is NaN fails with InvalidArgumentError.

    Raises:
      ValueError: shapes of labels, predictions and indicators do not fit, or collections are no list or tuple.
      TypeError: indicators are no integers.
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
    """[N, 2] -> its last column, [N]; others as they are."""
    return tensor[:, 1] if tensor.shape.rank == 2 and tf.compat.dimension_value(tensor.shape[1]) == 2 else tensor


def _ratio(
    added: tf.Tensor, metrics_collections: Sequence[str] | None, updates_collections: Sequence[str] | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The metric total / count of which this worker's batch adds `added`, [2] float64."""
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
    """Approximate area under the ROC or precision-recall curve, over all workers; after `tf.compat.v1.metrics.auc`.

    Makes four local variables of shape [T], `true_positives`, `false_positives`, `true_negatives` and
    `false_negatives`: weights of the samples of each kind when what is predicted above a threshold counts as positive.
    The approximation is good where predictions spread over [0, 1]; 'minoring' and 'majoring' bound its error.

    Args:
      labels: the truth, of any shape [...]; cast to bool.
      predictions: floats in [0, 1], of the same shape. A last dimension of 1 that only one of the two has is dropped.
      weights: of rank 0 or the rank of `labels`, broadcastable to it; None is 1.
      num_thresholds: T, evenly spaced over [0, 1], ends included; at least 2.
      metrics_collections: collections to which the value is added.
      updates_collections: collections to which the update is added.
      curve: 'ROC' (recall over false positive rate) or 'PR' (precision over recall).
      name: of the variable scope.
      summation_method: 'trapezoidal'; 'careful_interpolation' (as trapezoidal for ROC; for PR it interpolates true and
        false positives, not their ratio); 'minoring' or 'majoring' (the lower or the higher end of each interval).

    Returns:
      (value, update): float32 scalars. Running `update`, which all workers must do together, adds a batch of each
      worker and gives the new value. An update whose predictions are not in [0, 1] fails with InvalidArgumentError.

    Raises:
      ValueError: shapes of labels, predictions and weights do not fit, collections are no list or tuple, or unknown
        `curve`, `summation_method` or `num_thresholds`.
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
    """[2, T + 1] float64: weights of negative [0] and positive [1] samples, by the number of thresholds below them.

    It says as much as the four counters at half the size, and costs N log T instead of the N T of comparing each sample
    with each threshold.
    """
    in_range = "auc: predictions must be in [0, 1]"
    checks = [
        _tf1.debugging.assert_greater_equal(predictions, tf.zeros([], predictions.dtype), message=in_range),
        _tf1.debugging.assert_less_equal(predictions, tf.ones([], predictions.dtype), message=in_range),
    ]
    with tf.control_dependencies(checks):
        predictions = tf.cast(tf.identity(predictions), tf.float32)  # a cast to the same type is no operation
    inner = [i / (num_thresholds - 1) for i in range(1, num_thresholds - 1)]
    thresholds = tf.constant([-_MARGIN, *inner, 1.0 + _MARGIN], tf.float32)
    below = tf.searchsorted(thresholds, predictions, side="left")
    bins = num_thresholds + 1
    bin_of = below + bins * tf.cast(tf.cast(labels, tf.bool), tf.int32)
    return tf.reshape(tf.math.unsorted_segment_sum(weights, bin_of, 2 * bins), [2, bins])


def _confusion(histogram: tf.Tensor) -> list[tf.Tensor]:
    """[2, T + 1] of `_histogram` -> true positives, false positives, true negatives, false negatives, each [T].

    A sample is above threshold t when more than t thresholds are below it.
    """
    above = tf.cumsum(histogram, axis=1, reverse=True)[:, 1:]
    below = tf.cumsum(histogram, axis=1)[:, :-1]
    return [above[1], above[0], below[0], below[1]]


def _riemann(height: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Sum over intervals of width x[t] - x[t + 1] (x falls with the threshold) times a height from both ends."""
    return lambda x, y: tf.reduce_sum((x[:-1] - x[1:]) * height(y[:-1], y[1:]))


_TRAPEZOIDAL = _riemann(lambda left, right: (left + right) / 2)
_AREAS = {
    "trapezoidal": _TRAPEZOIDAL,
    "careful_interpolation": _TRAPEZOIDAL,  # of the ROC curve; that of PR has a function of its own
    "minoring": _riemann(tf.minimum),
    "majoring": _riemann(tf.maximum),
}


def _interpolated_pr_area(tp: tf.Tensor, fp: tf.Tensor, fn: tf.Tensor) -> tf.Tensor:
    """Area under precision over recall, after Davis and Goadrich, "The Relationship Between PR and ROC Curves", 2006.

    Between two thresholds true positives grow linearly with all that count as positive, p: tp = slope * p + intercept.
    The integral of the precision tp / p over tp is then slope * (difference of tp + intercept * log of the ratio of p).
    Divided by the number of samples that are positive, it is the area over recall.
    """
    positive = tp + fp
    high, low = positive[:-1], positive[1:]
    gained = tp[:-1] - tp[1:]
    slope = tf.math.divide_no_nan(gained, tf.maximum(high - low, 0))
    intercept = tp[1:] - slope * low
    # Where there are no positives at the lower end, the precision is constant over the interval.
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
    """Labels, predictions and float64 weights as [N], checked to belong together."""
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
    """Drops the last dimension of `tensor` where `other` lacks just that and it is (or may be) 1."""
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
    """The sum of `added` over all workers, in the order of their ranks; a job of one worker needs no engine."""
    if context.world_size == 1:
        return added
    return ordered.allreduce(added, op="sum", name="sum_over_workers")


def _counter(name: str, shape: tuple[int, ...]) -> tf.Variable:
    """A counter: local (no checkpoint holds it) and not trainable (no scope shards or broadcasts it)."""
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
    """The metric as a `function` of its counters: as they are, and after the update."""
    value = tf.cast(function(*(counter.read_value() for counter in counters)), tf.float32, name="value")
    with tf.control_dependencies(update_counters):
        update = tf.cast(function(*(counter.read_value() for counter in counters)), tf.float32, name="update_op")
    for collections, tensor in ((metrics_collections, value), (updates_collections, update)):
        for collection in collections or ():
            _tf1.add_to_collection(collection, tensor)
    return value, update
