"""Metrics, compared with `tf.compat.v1.metrics`.

For several workers see tests/multiprocess/evaluation/evaluation_test.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.evaluation import metrics

tf1 = tf.compat.v1

CURVES = [
    (curve, method)
    for curve in ("ROC", "PR")
    for method in ("trapezoidal", "careful_interpolation", "minoring", "majoring")
]


def stream(metric, batches, **arguments):
    """Returns the update's value after each batch, and the final value; a batch is a tuple of arrays or None."""
    with tf.Graph().as_default(), tf1.Session() as session:
        feeds = [None if a is None else tf1.placeholder(a.dtype, [None] * a.ndim) for a in batches[0]]
        value, update = metric(*feeds, **arguments)
        session.run(tf1.local_variables_initializer())
        updates = [
            session.run(update, {f: a for f, a in zip(feeds, batch, strict=True) if f is not None}) for batch in batches
        ]
        return updates, session.run(value)


def batches_of(rng, sizes, weighted, ties=False):
    result = []
    for size in sizes:
        labels = rng.integers(0, 2, size)
        predictions = rng.random(size).astype(np.float32)
        if ties:  # values that equal thresholds
            predictions = rng.integers(0, 200, size).astype(np.float32) / np.float32(199)
        weights = rng.random(size).astype(np.float32) if weighted else None
        result.append((labels, predictions, weights))
    return result


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("curve", "method"), CURVES)
def test_auc_is_tensorflows(curve, method, weighted):
    batches = batches_of(np.random.default_rng(7), [40, 1, 0, 300], weighted)
    arguments = {"curve": curve, "summation_method": method}
    ours, theirs = stream(metrics.auc, batches, **arguments), stream(tf1.metrics.auc, batches, **arguments)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


@pytest.mark.parametrize("num_thresholds", [2, 3, 200, 1000])
def test_auc_of_predictions_on_thresholds_is_tensorflows(num_thresholds):
    batches = batches_of(np.random.default_rng(11), [500], weighted=False, ties=True)
    ours = stream(metrics.auc, batches, num_thresholds=num_thresholds)
    theirs = stream(tf1.metrics.auc, batches, num_thresholds=num_thresholds)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


@pytest.mark.parametrize("labels", [np.zeros(20, np.int64), np.ones(20, np.int64)])
@pytest.mark.parametrize(("curve", "method"), CURVES)
def test_auc_of_one_class_is_tensorflows(labels, curve, method):
    batch = (labels, np.linspace(0, 1, 20, dtype=np.float32), None)
    arguments = {"curve": curve, "summation_method": method}
    ours, theirs = stream(metrics.auc, [batch], **arguments), stream(tf1.metrics.auc, [batch], **arguments)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_accuracy_is_tensorflows(weighted):
    rng = np.random.default_rng(3)
    batches = [
        (labels, rng.integers(0, 3, labels.size).astype(np.float32), weights)
        for labels, _, weights in batches_of(rng, [50, 0, 7], weighted)
    ]
    ours, theirs = stream(metrics.accuracy, batches), stream(tf1.metrics.accuracy, batches)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_mean_is_tensorflows(weighted):
    rng = np.random.default_rng(5)
    batches = [
        (rng.normal(size=(size, 3)).astype(np.float32), rng.random((size, 1)).astype(np.float32) if weighted else None)
        for size in (50, 0, 7)
    ]
    ours, theirs = stream(metrics.mean, batches), stream(tf1.metrics.mean, batches)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


def grouped_auc(batches):
    """Computes the metric by its definition: over all pairs of each run of equal indicators, weighted by samples."""
    total = count = 0
    for labels, predictions, indicators in batches:
        starts = np.flatnonzero(np.diff(indicators, prepend=indicators[:1] - 1)) if labels.size else []
        for group in np.split(np.arange(labels.size), starts)[1:]:
            positive, negative = predictions[group][labels[group] > 0], predictions[group][labels[group] == 0]
            if positive.size and negative.size:
                won = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
                total += group.size * won.mean()
                count += group.size
    return total / count if count else 0.0


@pytest.mark.parametrize("types", [(np.int64, np.float32, np.int64), (np.float32, np.float64, np.int32)])
def test_gauc_is_the_mean_over_runs_of_equal_indicators(types):
    rng = np.random.default_rng(17)
    batches = [
        (rng.integers(0, 2, n), rng.integers(0, 20, n) / 20, np.sort(rng.integers(0, max(n // 4, 1), n)))
        for n in (40, 0, 1, 200)
    ]
    batches = [tuple(array.astype(t) for array, t in zip(batch, types, strict=True)) for batch in batches]
    updates, value = stream(metrics.gauc, batches)
    np.testing.assert_allclose(updates, [grouped_auc(batches[: i + 1]) for i in range(4)], rtol=1e-6)
    assert value == updates[-1]


# Promise (hybridbackend.md): all groups count (HybridBackend, a wrong result: `gauc` drops the first and last group of
# each batch).
def test_gauc_counts_first_and_last_group():
    labels = np.array([1, 0, 1, 0, 1, 0])
    predictions = np.array([0.9, 0.1, 0.8, 0.2, 0.1, 0.9], np.float32)  # AUC 1, 1 and 0
    _, value = stream(metrics.gauc, [(labels, predictions, np.array([7, 7, 8, 8, 9, 9]))])
    np.testing.assert_allclose(value, 2 / 3, rtol=1e-6)


def test_gauc_without_indicators_takes_a_batch_as_a_group():
    labels, predictions, _ = batches_of(np.random.default_rng(2), [100], weighted=False)[0]
    _, value = stream(metrics.gauc, [(labels, predictions)])
    np.testing.assert_allclose(value, grouped_auc([(labels, predictions, np.zeros(100, int))]), rtol=1e-6)


def test_gauc_takes_the_last_of_two_columns():
    labels, predictions, _ = batches_of(np.random.default_rng(2), [50], weighted=False)[0]
    groups = np.arange(50) // 10
    columns = (np.stack([1 - labels, labels], 1), np.stack([1 - predictions, predictions], 1), groups)

    def of_columns(labels, predictions, groups):
        return metrics.gauc(tf.ensure_shape(labels, [None, 2]), tf.ensure_shape(predictions, [None, 2]), groups)

    wanted = stream(metrics.gauc, [(labels, predictions, groups)])
    assert stream(of_columns, [columns]) == wanted
    # A single column, [N, 1], counts as [N], for labels and for predictions.
    assert stream(metrics.gauc, [(labels[:, None], predictions, groups)]) == wanted


def test_gauc_refuses_shapes_that_do_not_fit():
    with tf.Graph().as_default():
        three, labels = tf.zeros([3]), tf.zeros([2])
        with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
            metrics.gauc(labels, three)
        with pytest.raises(ValueError, match="3 indicators do not match 2 labels"):
            metrics.gauc(labels, labels, tf.zeros([3], tf.int64))
        with pytest.raises(TypeError, match="indicators are float32, wanted integers"):
            metrics.gauc(labels, labels, labels)
    samples = (np.zeros(2, np.int64), np.zeros(2, np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="wanted one of each per sample"):
        stream(metrics.gauc, [(*samples, np.zeros(3, np.int64))])
    with pytest.raises(tf.errors.InvalidArgumentError, match="sample 1 is NaN"):
        stream(metrics.gauc, [(samples[0], np.array([0, np.nan], np.float32))])


def test_mean_refuses_weights_that_do_not_fit():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="cannot be broadcast"):
        metrics.mean(tf.zeros([3]), tf.zeros([2]))


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.auc, metrics.gauc])
def test_value_without_data_is_zero(metric):
    empty = (np.zeros(0, np.int64), np.zeros(0, np.float32))
    assert stream(metric, [empty]) == ([0.0], 0.0)


def test_counts_stay_exact_beyond_float32():
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = tf1.placeholder(tf.float64, [])
        value, update = metrics.accuracy(tf.constant([1, 0]), tf.constant([1, 1]), weights)
        session.run(tf1.local_variables_initializer())
        session.run(update, {weights: 2.0**30})
        session.run(update, {weights: 1.0})
        count = next(v for v in tf1.local_variables() if "count" in v.name)
        assert session.run(count) == 2 * (2.0**30 + 1)
        assert session.run(value) == 0.5


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.auc])
def test_shapes_that_fit(metric):
    # (labels, predictions, weights): labels and predictions have the same samples in each case.
    data = np.array([[1.0], [0.0], [1.0]], np.float32)
    by_sample = np.array([[1.0], [2.0], [3.0]])
    wanted = stream(metric, [(data[:, 0], data[:, 0], by_sample[:, 0])])
    assert stream(metric, [(data, data, by_sample)]) == wanted
    assert stream(metric, [(data, data[:, 0], by_sample[:, 0])]) == wanted
    assert stream(metric, [(data[:, 0], data, by_sample)]) == wanted
    assert stream(metric, [(data, data, np.float64(1.0) * np.ones((1, 1)))]) == stream(metric, [(data, data, None)])
    wide = np.concatenate([data, data], axis=1)
    np.testing.assert_allclose(stream(metric, [(wide, wide, by_sample)])[1], wanted[1], rtol=1e-6)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.auc])
@pytest.mark.parametrize(
    ("labels", "predictions", "weights", "message"),
    [
        ([2], [3], None, r"\(2,\).*\(3,\)"),
        ([3], [3], [2], r"weights.*labels of shape \(3,\)"),
        ([3], [3], [1, 3], r"weights.*labels of shape \(3,\)"),
    ],
    ids=["predictions", "weights", "weights' rank"],
)
def test_shapes_that_do_not_fit_are_refused(metric, labels, predictions, weights, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        metric(tf.zeros(labels), tf.zeros(predictions), None if weights is None else tf.zeros(weights))


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.auc])
@pytest.mark.parametrize(("predictions", "weights"), [([0.0] * 3, None), ([0.0] * 2, [1.0] * 3)])
def test_shapes_known_at_run_time_are_checked(metric, predictions, weights):
    batch = (np.zeros(2, np.float32), np.array(predictions, np.float32), weights and np.array(weights))
    with pytest.raises(tf.errors.InvalidArgumentError):
        stream(metric, [batch])


@pytest.mark.parametrize("prediction", [-0.1, 1.1, np.nan])
def test_auc_of_predictions_outside_0_to_1_fails(prediction):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be in"):
        stream(metrics.auc, [(np.zeros(1), np.array([prediction], np.float32))])


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.auc, metrics.gauc])
def test_collections(metric):
    data = tf.zeros  # made inside the graph
    with tf.Graph().as_default() as graph:
        value, update = metric(data([2]), data([2]), metrics_collections=["m", "n"], updates_collections=("u",))
        assert [graph.get_collection(key) for key in "mnu"] == [[value], [value], [update]]


@pytest.mark.parametrize("argument", ["metrics_collections", "updates_collections"])
@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.auc, metrics.gauc])
def test_a_name_in_place_of_collections_is_refused(metric, argument):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=f"{argument} is 'm'"):
        metric(tf.zeros([2]), tf.zeros([2]), **{argument: "m"})


@pytest.mark.parametrize("arguments", [{"curve": "AUC"}, {"summation_method": "left"}, {"num_thresholds": 1}], ids=str)
def test_unknown_curves_are_refused(arguments):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=next(iter(arguments))):
        metrics.auc(tf.zeros([2]), tf.zeros([2]), **arguments)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.auc, metrics.mean, metrics.gauc])
def test_eager_execution_is_refused(metric):
    with pytest.raises(RuntimeError, match="eager"):
        metric([1.0], [1.0])


def test_counters_are_local_metric_variables_under_the_documented_names():
    with tf.Graph().as_default():
        metrics.accuracy(tf.zeros([2]), tf.zeros([2]))
        metrics.auc(tf.zeros([2]), tf.zeros([2]), name="of_clicks")
        assert [v.op.name for v in tf1.local_variables()] == [
            "accuracy/total",
            "accuracy/count",
            "of_clicks/true_positives",
            "of_clicks/false_positives",
            "of_clicks/true_negatives",
            "of_clicks/false_negatives",
        ]
        assert tf1.get_collection(tf1.GraphKeys.METRIC_VARIABLES) == tf1.local_variables()
        assert not tf1.global_variables() and not tf1.trainable_variables()
