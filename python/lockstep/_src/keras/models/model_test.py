"""Models of Keras 3 on one worker, against plain Keras. For two see tests/multiprocess/keras/model_test.py."""

import os

import numpy as np
import pytest

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3"):
    pytest.skip("the models are those of Keras 3", allow_module_level=True)

from lockstep._src.keras.models.model import Functional, Model  # noqa: E402
from lockstep._src.scope import scope  # noqa: E402

X = np.random.RandomState(0).randn(8, 2).astype(np.float32)
Y = X @ np.float32([[1.0], [-2.0]])


def functional(cls=Model):
    with scope():
        inputs = keras.Input([2])
        model = cls(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


class Subclass(Model):
    """The same model as a subclass, which builds its weights when it first sees data."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")
        self.compile(keras.optimizers.Adam(0.1), "mse")

    def call(self, inputs):
        return self.dense(inputs)


def fit(model, epochs, **arguments):
    return model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **arguments)


@pytest.fixture(scope="module")
def plain():
    """Returns plain Keras' history after two epochs, and its model."""
    model = functional(keras.Model)
    return fit(model, 2).history, model


@pytest.mark.parametrize("make", [functional, Subclass])
def test_a_model_trains_evaluates_and_predicts_as_plain_keras(make, plain):
    history, model = plain
    ours = make()
    assert fit(ours, 2).history["loss"] == pytest.approx(history["loss"], rel=1e-5)
    assert ours.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-5)
    np.testing.assert_allclose(ours.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)


@pytest.mark.parametrize("make", [functional, Subclass])
def test_training_goes_on_with_the_optimizers_weights(make, plain, tmp_path):
    fit(make(), 1, checkpoint_dir=tmp_path)
    ours = make()
    history, model = plain
    assert fit(ours, 1, checkpoint_dir=tmp_path).history["loss"] == pytest.approx(history["loss"][1:], rel=1e-5)
    assert sorted(os.listdir(tmp_path)) == [f"epoch-00000{n}.weights.h5" for n in (1, 2)]
    expected, ours = model.predict(X, verbose=0), make()
    loss = ours.evaluate(X, Y, verbose=0, checkpoint_dir=tmp_path)
    assert loss == pytest.approx(np.mean((expected - Y) ** 2), rel=1e-5)
    ours.set_weights([np.zeros_like(w) for w in ours.get_weights()])
    np.testing.assert_allclose(ours.predict(X, verbose=0, checkpoint_dir=tmp_path), expected, rtol=1e-5)


def test_weights_are_loaded_from_a_directory(plain, tmp_path):
    fit(functional(), 2, checkpoint_dir=tmp_path)
    ours = functional()
    ours.load_weights(tmp_path)
    np.testing.assert_allclose(ours.get_weights()[0], plain[1].get_weights()[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        ({}, [2, 3, 4, 5, 6]),
        ({"keep_checkpoint_max": 2}, [5, 6]),
        ({"keep_checkpoint_max": 0}, [1, 2, 3, 4, 5, 6]),
        # The values fall from epoch to epoch, so the first one is the best.
        ({"save_best_only": True, "monitor": "loss", "mode": "max"}, [1]),
    ],
    ids=["5", "2", "all", "the best"],
)
def test_files_are_kept_as_requested(tmp_path, arguments, numbers):
    (tmp_path / "other.txt").touch()
    functional().fit(X, Y, 8, 6, 0, checkpoint_dir=tmp_path, **arguments)
    assert sorted(os.listdir(tmp_path)) == [*(f"epoch-00000{n}.weights.h5" for n in numbers), "other.txt"]


class Recorder(keras.callbacks.Callback):
    """A callback that lists the files at the ends of epochs."""

    def on_epoch_end(self, epoch, logs=None):
        self.seen = [*getattr(self, "seen", []), len(os.listdir(self.folder))]


@pytest.mark.parametrize("how", ["by name", "alone", "by position"])
def test_callbacks_of_the_caller_follow_the_save(tmp_path, how):
    recorder = Recorder()
    recorder.folder = tmp_path
    if how == "by position":
        functional().fit(X, Y, 4, 2, 0, [recorder], checkpoint_dir=tmp_path)
    else:
        fit(functional(), 2, callbacks=[recorder] if how == "by name" else recorder, checkpoint_dir=tmp_path)
    assert recorder.seen == [1, 2]


def test_a_functional_model_is_saved_as_one_of_plain_keras(tmp_path):
    model = functional()
    assert type(model) is Functional and isinstance(model, Model)
    model.save(tmp_path / "model.keras")
    assert type(keras.models.load_model(tmp_path / "model.keras")).__module__.startswith("keras.")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, f: m.evaluate(X, Y, checkpoint_dir=f), ValueError, "^evaluate: found no weights in '{folder}'$"),
        (lambda m, f: m.predict(X, checkpoint_dir=f), ValueError, "^predict: found no weights in '{folder}'$"),
        (lambda m, f: m.load_weights(f), ValueError, "^load_weights: found no weights in '{folder}'$"),
        (lambda m, f: fit(m, 1, checkpoint_dir=f, save_best_only=True, mode="x"), ValueError, "^fit: mode is 'x', wan"),
        (
            lambda m, f: fit(m, 1, checkpoint_dir=f, callbacks=keras.callbacks.CallbackList(model=m)),
            NotImplementedError,
            "^callbacks is a CallbackList, wanted a list of callbacks with checkpoint_dir$",
        ),
        (lambda m, f: m.export_saved_model(f), NotImplementedError, "^export_saved_model: not implemented for models "),
        (lambda m, f: fit(m, 1, nothing=1), TypeError, "nothing"),
    ],
    ids=["evaluate", "predict", "load_weights", "mode", "a list of callbacks", "export", "an unknown argument"],
)
def test_an_error_says_what_was_wanted(tmp_path, call, error, message):
    with pytest.raises(error, match=message.format(folder=tmp_path)):
        call(functional(), tmp_path)
