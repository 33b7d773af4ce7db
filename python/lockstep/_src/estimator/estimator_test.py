"""Estimators on one worker, compared with NumPy. Several workers: tests/multiprocess/estimator/estimator_test.py."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.estimator.estimator import Estimator
from lockstep._src.estimator.exporters import ServingInputReceiver
from lockstep._src.estimator.specs import EstimatorSpec, ModeKeys, RunConfig
from lockstep._src.estimator.warm_start import WarmStartSettings
from lockstep._src.tables import dynamic

_tf1 = tf.compat.v1
RATE = 0.1
BATCHES = np.random.default_rng(3).normal(size=[4, 5, 2]).astype(np.float32)
# Training is by one step for each batch; no checkpoint is saved in between.
SETTINGS = {"save_checkpoints_steps": 100, "log_step_count_steps": None, "save_summary_steps": None}


def input_fn():
    return tf.data.Dataset.from_tensor_slices((BATCHES, BATCHES.sum(2)))


def features_only():
    return tf.data.Dataset.from_tensor_slices(BATCHES)


def model_fn(features, labels, mode, params):
    """Builds a linear model of two weights, with the mean squared error as the loss."""
    start = _tf1.constant_initializer(params.get("start", 0.0))
    weights = _tf1.get_variable("w", [2], initializer=start, use_resource=True)
    scores = tf.reduce_sum(features * weights, 1)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"score": scores, "double": 2 * scores})
    loss = tf.reduce_mean(tf.square(scores - labels))
    if mode == ModeKeys.EVAL:
        metrics = {"mean_score": _tf1.metrics.mean(scores), "weights": (weights.value(), tf.no_op())}
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    train_op = _tf1.train.GradientDescentOptimizer(RATE).minimize(loss, _tf1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def trained(steps, weights=(0.0, 0.0)):
    """Returns the weights after some steps, by NumPy."""
    weights = np.array(weights)
    for x in BATCHES[:steps]:
        weights = weights - RATE * 2 * ((x @ weights - x.sum(1))[:, None] * x).mean(0)
    return weights


def make(folder, build=model_fn, **options):
    return Estimator(build, str(folder), RunConfig(**SETTINGS), **options)


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory):
    """Returns an estimator that is trained on all batches."""
    return make(tmp_path_factory.mktemp("model")).train(input_fn)


class Count(tf.compat.v1.train.SessionRunHook):
    """A hook that counts runs."""

    runs = 0

    def after_run(self, run_context, run_values):
        self.runs += 1


def test_training_takes_all_data_and_computes_what_numpy_does(model):
    np.testing.assert_allclose(model.get_variable_value("w"), trained(4), rtol=1e-5)
    assert model.get_variable_names() == ["global_step", "w"]
    assert model.latest_checkpoint() == f"{model.model_dir}/model.ckpt-4"


@pytest.mark.parametrize(
    ("arguments", "steps"), [({"steps": 2}, 2), ({"max_steps": 3e0}, 3), ({"steps": 9}, 4)], ids=str
)
def test_training_ends_at_its_steps_or_with_the_data(tmp_path, arguments, steps):
    hook = Count()
    model = make(tmp_path).train(input_fn, [hook], **arguments)
    assert (hook.runs, model.get_variable_value("global_step")) == (steps, steps)
    np.testing.assert_allclose(model.get_variable_value("w"), trained(steps), rtol=1e-5)


def test_training_continues_from_the_checkpoint_up_to_the_step(tmp_path):
    model = make(tmp_path)
    model.train(input_fn, steps=1)
    # The data starts from its beginning in the second call.
    model.train(input_fn, max_steps=3)
    np.testing.assert_allclose(model.get_variable_value("w"), trained(2, trained(1)), rtol=1e-5)
    hook = Count()
    assert model.train(input_fn, [hook], max_steps=3) is model
    assert hook.runs == 0


def test_evaluation_is_over_all_batches(model, caplog):
    with caplog.at_level(logging.INFO, "lockstep"):
        values = model.evaluate(input_fn, name="held_out")
    scores = BATCHES @ trained(4)
    assert list(sorted(values)) == ["global_step", "loss", "mean_score", "weights"]
    np.testing.assert_allclose(values["loss"], np.square(scores - BATCHES.sum(2)).mean(), rtol=1e-4)
    np.testing.assert_allclose(values["mean_score"], scores.mean(), rtol=1e-4)
    assert values["global_step"] == 4
    assert "evaluation at step 4, 4 batches a worker: loss = " in caplog.text
    (file,) = tf.io.gfile.glob(f"{model.eval_dir('held_out')}/*")
    events = {v.tag: v for event in _tf1.train.summary_iterator(file) for v in event.summary.value}
    assert set(events) == set(values)
    np.testing.assert_allclose(events["loss"].simple_value, values["loss"], rtol=1e-6)
    np.testing.assert_allclose(tf.make_ndarray(events["weights"].tensor), trained(4), rtol=1e-5)


def test_evaluation_takes_no_more_batches_than_steps(model):
    hook = Count()
    values = model.evaluate(input_fn, steps=2, hooks=[hook])
    np.testing.assert_allclose(values["mean_score"], (BATCHES[:2] @ trained(4)).mean(), rtol=1e-4)
    assert hook.runs == 2
    assert (model.eval_dir(), model.eval_dir("a")) == (f"{model.model_dir}/eval", f"{model.model_dir}/eval_a")


@pytest.mark.parametrize("keys", [None, "double", ["score"]], ids=str)
def test_predictions_come_row_by_row(model, keys):
    got = list(model.predict(input_fn, keys))
    scores = (BATCHES @ trained(4)).ravel()
    wanted = {"score": scores, "double": 2 * scores}
    assert set(got[0]) == set(wanted if keys is None else np.atleast_1d(keys))
    for name in got[0]:
        np.testing.assert_allclose([row[name] for row in got], wanted[name], rtol=1e-4)


def test_predictions_come_batch_by_batch_where_this_is_asked_for(model):
    got = [batch["score"] for batch in model.predict(features_only, yield_single_examples=False)]
    np.testing.assert_allclose(got, BATCHES @ trained(4), rtol=1e-4)


@pytest.mark.parametrize(
    ("predictions", "keys", "message"),
    [
        ({"score": [1.0]}, "z", "predict_keys has z, the predictions are score"),
        ([1.0], ["z"], r"predict_keys is \['z'\], but the predictions have no names"),
        ({"a": [1.0], "b": [1.0, 2.0]}, None, r"predictions have \{'a': 1, 'b': 2\} rows; use yield_single_examples"),
    ],
    ids=["unknown", "unnamed", "uneven"],
)
def test_wrong_predictions_are_refused(model, predictions, keys, message):
    def build(features, mode):
        _tf1.get_variable("w", [2])
        return EstimatorSpec(mode, predictions=tf.nest.map_structure(tf.constant, predictions))

    if isinstance(predictions, dict):
        predictions = {name: np.array(value) for name, value in predictions.items()}
    else:
        predictions = np.array(predictions)
    with pytest.raises(ValueError, match=message):
        list(make(model.model_dir, build).predict(features_only, keys))


def test_an_export_serves_the_checkpoint(model, tmp_path):
    def receive():
        inputs = _tf1.placeholder(tf.float32, [None, 2])
        return ServingInputReceiver(inputs, {"x": inputs})

    path = model.experimental_export_all_saved_models(tmp_path, {"infer": receive})
    serve = tf.saved_model.load(path).signatures["serving_default"]
    np.testing.assert_allclose(serve(x=tf.constant(BATCHES[0]))["score"], BATCHES[0] @ trained(4), rtol=1e-4)


@pytest.mark.parametrize("by", ["path", "settings"])
def test_a_warm_start_begins_with_another_models_values(model, tmp_path, by):
    source = model.model_dir if by == "path" else WarmStartSettings(model.model_dir, "w")
    warm = make(tmp_path, warm_start_from=source, params={"start": 9.0}).train(input_fn, steps=1)
    np.testing.assert_allclose(warm.get_variable_value("w"), trained(1, trained(4)), rtol=1e-5)


def keyed_model_fn(features, labels, mode, params):
    """Builds the sum of a dynamic table's rows, and trains it towards 0."""
    del labels
    table = dynamic.get_embedding_variable("keyed", 2, initializer=tf.ones_initializer())
    rows = tf.nn.embedding_lookup(table, features)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=tf.reduce_sum(rows, 1))
    if params.get("adds"):
        dynamic.get_embedding_variable("new", 2)
    loss = tf.reduce_sum(tf.square(rows))
    train_op = _tf1.train.AdagradOptimizer(RATE, 0.1).minimize(loss, _tf1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def keys_fn():
    return tf.data.Dataset.from_tensor_slices([[5, 7]])


# Promise (checkpoints.md): `init_from_checkpoint` and warm starts give dynamic tables their rows, on any number of
# workers.
@pytest.mark.parametrize("meant", [".*", ["keyed"]])
def test_a_warm_start_gives_dynamic_tables_their_rows(tmp_path, meant):
    row, accumulated, seen = 1.0, 0.1, []
    for folder, source in (("first", None), ("second", WarmStartSettings(f"{tmp_path}/first", meant))):
        model = make(tmp_path / folder, keyed_model_fn, warm_start_from=source).train(keys_fn)
        accumulated = 0.1 + (2 * row) ** 2  # accumulators are not restored
        row -= RATE * 2 * row / np.sqrt(accumulated)
        seen.append((list(model.predict(keys_fn)), row))
    for predicted, wanted in seen:
        np.testing.assert_allclose(predicted, [2 * wanted] * 2, rtol=1e-5)
    lacking = make(tmp_path / "third", keyed_model_fn, warm_start_from=f"{tmp_path}/first", params={"adds": True})
    with pytest.raises(ValueError, match="^warm_start_from: table 'new' cannot begin with .*'new' is missing"):
        lacking.train(keys_fn)


def test_functions_get_the_arguments_that_they_take(tmp_path):
    seen = {}

    def build(features, labels, mode, config, params):
        seen["model"] = (mode, config.tf_random_seed, params)
        params["a"].append(2)
        return model_fn(features, labels, mode, {})

    def data(params, mode, unused=3):
        seen["data"] = (mode, params)
        return input_fn()

    params = {"a": [1]}
    model = make(tmp_path, build, params=params).train(data, steps=1)
    assert seen == {"model": ("train", 1, {"a": [1, 2]}), "data": ("train", {"a": [1]})}
    # Each call has a copy of its own.
    assert (params, model.params, model.model_fn) == ({"a": [1]}, {"a": [1]}, build)
    model.config.model_dir = "other"
    assert model.config.model_dir == str(tmp_path)


@pytest.mark.parametrize("config", [None, RunConfig(model_dir="")], ids=["none", "empty"])
def test_a_folder_is_made_where_none_is_given(config, caplog):
    model = Estimator(model_fn, config=config)
    assert tf.io.gfile.isdir(model.model_dir)
    assert f"checkpoints go to {model.model_dir}" in caplog.text
    tf.io.gfile.rmtree(model.model_dir)


def of_other_mode(features, labels):
    return EstimatorSpec("infer", predictions=features)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda m: m.train(input_fn, steps=1, max_steps=2),
            ValueError,
            "train: steps is 1 and max_steps is 2, wanted one",
        ),
        (lambda m: m.train(input_fn, steps=0), ValueError, "train: steps is 0, wanted at least 1, or None"),
        (lambda m: m.train(input_fn, max_steps=0), ValueError, "train: max_steps is 0, wanted at least 1"),
        (lambda m: m.train(input_fn, hooks=[3]), TypeError, "train: hooks has 3, wanted a list of tf.train.Sess"),
        (lambda m: m.train(input_fn, saving_listeners=[3]), TypeError, "train: saving_listeners has 3, wanted a list"),
        (lambda m: m.train(lambda x: x), ValueError, "input_fn takes x, wanted some of mode, params, config"),
        (lambda m: m.train(lambda: (1, 2, 3)), ValueError, r"input_fn returned 3 values, wanted \(features, labels\)"),
        (lambda m: m.evaluate(input_fn, steps=0), ValueError, "evaluate: steps is 0, wanted at least 1, or None"),
        (lambda m: m.evaluate(input_fn), ValueError, "no checkpoint in '.*'; train first"),
        (lambda m: m.predict(input_fn), ValueError, "predict: no checkpoint in '"),
        (lambda m: m.export_saved_model("x", 3), ValueError, "export_saved_model: got 3, wanted a function"),
        (
            lambda m: m.export_saved_model("x", input_fn, experimental_mode="eval"),
            ValueError,
            "export_saved_model: experimental_mode is 'eval', wanted 'infer'",
        ),
        (
            lambda m: m.experimental_export_all_saved_models("x", {"eval": input_fn}),
            ValueError,
            r"input_receiver_fn_map has \['eval'\], wanted only 'infer'",
        ),
        (
            lambda m: make(m.model_dir, lambda x: x),
            ValueError,
            "model_fn takes x, wanted some of features, labels, mode",
        ),
        (lambda m: make(m.model_dir, lambda labels: 1), ValueError, "model_fn takes labels, wanted some of features"),
        (
            lambda m: make(m.model_dir, lambda features: 1).train(input_fn),
            ValueError,
            "model_fn takes no labels, but input_fn returns some",
        ),
        (
            lambda m: make(m.model_dir, lambda features, labels: 1).train(input_fn),
            ValueError,
            "model_fn returned 1 for mode 'train', wanted an EstimatorSpec",
        ),
        (
            lambda m: make(m.model_dir, of_other_mode).train(input_fn),
            ValueError,
            "model_fn returned a spec for mode 'infer', wanted 'train'",
        ),
        (
            lambda m: Estimator(model_fn, "a", RunConfig("b")),
            ValueError,
            "Estimator: model_dir is 'a', but config has 'b'",
        ),
        (lambda m: make(m.model_dir, warm_start_from=3), ValueError, "Estimator: warm_start_from is 3, wanted a path"),
    ],
    ids=lambda value: value.partition(",")[0] if isinstance(value, str) else "",
)
def test_wrong_calls_are_refused(tmp_path, call, error, message):
    with pytest.raises(error, match=message):
        call(make(tmp_path))


def test_an_evaluation_without_data_is_an_error(model):
    with pytest.raises(RuntimeError, match="evaluate: the evaluation data has no batch on any worker"):
        model.evaluate(lambda: input_fn().take(0))
