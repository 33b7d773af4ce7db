"""Models in graphs of TensorFlow 1 on one worker, against numpy. For two: tests/multiprocess/keras/model_test.py."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.keras.models.graph_model import Model

tf1 = tf.compat.v1
X = np.random.RandomState(0).randn(6, 2).astype(np.float32)
Y = X @ np.float32([[1.0], [-2.0]]) + 0.5
RATE = 0.1


@pytest.fixture(autouse=True)
def _graph():
    with tf.Graph().as_default():
        yield


def squared(labels, outputs):
    return tf.math.squared_difference(labels, outputs)


class Linear(Model):
    """y = x w, with w = 0 before training."""

    def call(self, inputs, training=None):
        self.called_for_training = training
        return tf.matmul(inputs, tf1.get_variable("w", [2, 1], initializer=tf1.zeros_initializer()))


def compiled(model=None, **arguments):
    model = model or Linear()
    model.compile(tf1.train.GradientDescentOptimizer(RATE), squared, **arguments)
    return model


def dataset(size=3, rows=slice(None)):
    return tf.data.Dataset.from_tensor_slices((X[rows], Y[rows])).batch(size)


def descended(epochs, size=3):
    """Returns the weights after gradient descent in numpy, and the losses of each epoch."""
    w, losses = np.zeros([2, 1], np.float32), []
    for _ in range(epochs):
        seen = []
        for begin in range(0, len(X), size):
            x, error = X[begin : begin + size], X[begin : begin + size] @ w - Y[begin : begin + size]
            seen.append(np.mean(error**2))
            w = w - RATE * 2 * x.T @ error / len(x)
        losses.append(np.mean(seen))
    return w, losses


def weights_in(folder):
    return tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder))).get_tensor("w")


def test_fit_evaluate_and_predict_are_those_of_numpy(tmp_path):
    model = compiled(metrics=["mae"])
    history = model.fit(dataset(), epochs=3, validation_data=dataset(4), checkpoint_dir=tmp_path)
    assert model.called_for_training is False  # the validation is built last
    w, losses = descended(3)
    np.testing.assert_allclose(weights_in(tmp_path), w, rtol=1e-5)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-5)
    assert history.epoch == [0, 1, 2] and history.history.keys() == {"loss", "mae", "val_loss", "val_mae"}
    loss, mae = np.mean((X @ w - Y) ** 2), np.mean(np.abs(X @ w - Y))
    assert history.history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)
    assert model.evaluate(dataset(4)) == pytest.approx([loss, mae], rel=1e-5)
    assert model.evaluate(dataset(4), return_dict=True) == pytest.approx({"loss": loss, "mae": mae}, rel=1e-5)
    np.testing.assert_allclose(model.predict(dataset(4)), X @ w, rtol=1e-5)
    np.testing.assert_allclose(model.predict(dataset(4).map(lambda x, y: x), steps=1), X[:4] @ w, rtol=1e-5)


def test_training_goes_on_from_the_checkpoint(tmp_path):
    assert compiled().fit(dataset(), epochs=1, checkpoint_dir=tmp_path).epoch == [0]
    with tf.Graph().as_default():
        assert compiled().fit(dataset(), epochs=3, initial_epoch=1, checkpoint_dir=tmp_path).epoch == [1, 2]
    np.testing.assert_allclose(weights_in(tmp_path), descended(3)[0], rtol=1e-5)


def test_the_loss_alone_is_a_number(tmp_path):
    model = compiled()
    model.fit(dataset(), checkpoint_dir=tmp_path)
    assert isinstance(model.evaluate(dataset()), float)


def test_epochs_of_a_number_of_steps_continue_in_the_data(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "lockstep"):
        history = compiled().fit(dataset(1), epochs=9, steps_per_epoch=2, checkpoint_dir=tmp_path)
    assert history.epoch == [0, 1, 2]
    np.testing.assert_allclose(weights_in(tmp_path), descended(1, 1)[0], rtol=1e-5)
    assert "fit: the data has ended after 3 epochs" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [({}, [2, 4, 6]), ({"keep_checkpoint_max": 2}, [4, 6]), ({"save_best_only": True, "monitor": "loss"}, [6])],
    ids=["all", "the latest", "the best"],
)
def test_checkpoints_are_kept_as_requested(tmp_path, arguments, steps):
    compiled().fit(dataset(), epochs=3, checkpoint_dir=tmp_path, **arguments)
    assert sorted(path.stem for path in tmp_path.glob("*.index")) == [f"model.ckpt-{step}" for step in steps]


def test_a_directory_is_made_if_none_is_given_and_later_calls_use_it():
    model = compiled()
    model.fit(dataset(), epochs=2)
    np.testing.assert_allclose(model.predict(dataset()), X @ descended(2)[0], rtol=1e-5)


def test_the_regularization_is_a_part_of_the_loss(tmp_path):
    class Regularized(Model):
        def call(self, inputs):
            w = tf1.get_variable("w", [2, 1], initializer=tf1.ones_initializer(), regularizer=tf.reduce_sum)
            return tf.matmul(inputs, w)

    history = compiled(Regularized()).fit(dataset(6), checkpoint_dir=tmp_path)
    error = X @ np.ones([2, 1]) - Y
    assert history.history["loss"] == pytest.approx([np.mean(error**2) + 2], rel=1e-5)
    np.testing.assert_allclose(weights_in(tmp_path), 1 - RATE * (2 * X.T @ error / len(X) + 1), rtol=1e-5)


def test_an_element_of_a_tables_gradient_is_clipped_once(tmp_path):
    class Table(Model):
        def call(self, inputs):
            return tf.nn.embedding_lookup(tf1.get_variable("w", [3, 1], initializer=tf1.zeros_initializer()), inputs)

    model = Table()
    model.compile(
        tf1.train.GradientDescentOptimizer(1.0), lambda labels, outputs: tf.reduce_sum(outputs), clipvalue=1.5
    )
    model.fit(tf.data.Dataset.from_tensors(([1, 1, 2], [0, 0, 0])), checkpoint_dir=tmp_path)
    np.testing.assert_array_equal(weights_in(tmp_path)[:, 0], [0.0, -1.5, -1.0])


def tensors(**arguments):
    """Returns a model of an iterator's tensors."""
    features, labels = tf1.data.make_one_shot_iterator(dataset().repeat()).get_next()
    outputs = tf.matmul(features, tf1.get_variable("w", [2, 1], initializer=tf1.zeros_initializer()))
    return compiled(Model([features], [outputs]), target_tensors=[labels], **arguments)


def test_a_model_of_tensors_trains_on_its_data_and_takes_other_data_after_it(tmp_path):
    model = tensors()
    model.fit(epochs=2, steps_per_epoch=2, checkpoint_dir=tmp_path)
    w, _ = descended(2)
    np.testing.assert_allclose(weights_in(tmp_path), w, rtol=1e-5)
    assert model.evaluate(dataset(4, slice(5))) == pytest.approx(np.mean((X[:5] @ w - Y[:5]) ** 2), rel=1e-5)
    np.testing.assert_allclose(model.predict(tf.data.Dataset.from_tensors(X)), X @ w, rtol=1e-5)


@pytest.mark.parametrize(
    ("scope", "loaded"), [(None, True), ("w", True), ("other", False)], ids=["all", "by name", "others"]
)
def test_weights_are_loaded_by_name(tmp_path, scope, loaded):
    compiled().fit(dataset(), checkpoint_dir=tmp_path)
    with tf.Graph().as_default():
        model = compiled()
        model.load_weights(tmp_path, scope)
        np.testing.assert_allclose(model.predict(dataset()), X @ descended(1)[0] * loaded, rtol=1e-5)


def test_an_export_serves_the_trained_weights(tmp_path):
    model = compiled()
    model.fit(dataset(), checkpoint_dir=tmp_path / "model")

    def signature():
        x = tf1.placeholder(tf.float32, [None, 2])
        return tf1.saved_model.predict_signature_def({"x": x}, {"y": Linear()(x)})

    folder = model.export_saved_model(str(tmp_path / "export"), signature)
    with tf.Graph().as_default(), tf1.Session() as session:
        served = tf1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        y = session.run(served.outputs["y"].name, {served.inputs["x"].name: X})
    np.testing.assert_allclose(y, X @ descended(1)[0], rtol=1e-5)


def test_a_summary_lists_variables_and_counts_parameters():
    model = Linear(name="linear")
    model(tf.zeros([1, 2]))
    lines = []
    model.summary(lines.append)
    assert [line.split() for line in lines] == [
        ["Model:", "linear"],
        ["w", "[2,", "1]"],
        ["Trainable", "parameters:", "2"],
    ]


def test_default_names_of_variables_are_those_of_the_first_call():
    class Named(Model):
        def call(self, inputs):
            with tf1.variable_scope(None, "dense"):
                return inputs * tf1.get_variable("w", [])

    model = Named()
    model._outputs(1.0, training=True)
    with model._building():
        model._outputs(1.0, training=False)
    assert [v.op.name for v in tf1.global_variables()] == ["dense/w"]


EMPTY = slice(0)
ERRORS = {
    "inputs alone": (lambda: Model([1.0]), ValueError, "^Model: got one of inputs and outputs, wanted both, or a sub"),
    "no call": (lambda: compiled(Model()).fit(dataset()), NotImplementedError, "^Model.call$"),
    "a call of tensors": (lambda: tensors()(1.0), NotImplementedError, "^model: a model of tensors cannot be called; "),
    "optimizer": (
        lambda: Linear().compile("sgd", "mse"),
        TypeError,
        "^compile: optimizer is 'sgd', wanted one of tf.c",
    ),
    "no loss": (lambda: Linear().compile(), ValueError, "^compile: loss is None, wanted a function of labels and out"),
    "clipnorm": (lambda: compiled(clipnorm=-1.0), ValueError, "^compile: clipnorm is -1.0, wanted 0 or more$"),
    "clipvalue": (lambda: compiled(clipvalue=-0.5), ValueError, "^compile: clipvalue is -0.5, wanted 0 or more$"),
    "other arguments": (
        lambda: compiled(run_eagerly=True, loss_weights=None),
        NotImplementedError,
        "^compile: run_eagerly is not implemented in graphs of TensorFlow 1; leave it out$",
    ),
    "not compiled": (lambda: Linear().fit(dataset()), RuntimeError, "^fit: the model is not compiled; call compile"),
    "no optimizer": (
        lambda: (model := Linear(), model.compile(loss=squared), model.fit(dataset())),
        ValueError,
        r"^fit: the model has no optimizer; give one to compile\(\)$",
    ),
    "labels": (
        lambda: compiled().fit(dataset(), Y),
        ValueError,
        "^fit: y is given, wanted a dataset x of features and labels$",
    ),
    "data for tensors": (
        lambda: tensors().fit(dataset()),
        NotImplementedError,
        "^fit: a model of tensors trains on the data of its tensors; x has to be None$",
    ),
    "no labels of tensors": (
        lambda: compiled(Model([1.0], [2.0])).fit(),
        ValueError,
        r"^fit: a model of tensors needs y, or target_tensors of compile\(\)$",
    ),
    "mode": (lambda: compiled().fit(dataset(), save_best_only=True, mode="best"), ValueError, "^fit: mode is 'best'"),
    "no data to train on": (lambda: compiled().fit(dataset(3, EMPTY)), ValueError, "^fit: the data has no batch on "),
    "no data to validate on": (
        lambda: compiled().fit(dataset(), validation_data=dataset(3, EMPTY)),
        ValueError,
        "^fit: validation_data: the data has no batch on any worker$",
    ),
    "no checkpoint": (lambda: compiled().evaluate(dataset()), ValueError, "^evaluate: found no checkpoint in None"),
    "no weights": (
        lambda: Linear().load_weights("/nowhere"),
        ValueError,
        "^load_weights: found no checkpoint in '/nowhere'$",
    ),
    "save": (lambda: Linear().save("x"), NotImplementedError, "^Model.save: only SavedModels are written; use export_"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_says_what_was_wanted(case):
    call, error, message = ERRORS[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_data_without_a_batch_is_refused(tmp_path, method):
    model = compiled()
    model.fit(dataset(), checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match=f"^{method}: the data has no batch on any worker$"):
        getattr(model, method)(dataset(3, EMPTY))
