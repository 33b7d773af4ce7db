"""The parts of a model in a graph of TensorFlow 1, against numpy."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.engine.context import context
from lockstep._src.keras.models import graph_parts
from lockstep._src.keras.models.graph_parts import Best, Callbacks, Compiled, History

tf1 = tf.compat.v1


def test_a_history_lists_the_values_of_each_epoch():
    history = History()
    history.append(3, {"loss": 0.5})
    history.append(4, {"loss": 0.25, "val_loss": 1.0})
    assert (history.epoch, history.history) == ([3, 4], {"loss": [0.5, 0.25], "val_loss": [1.0]})


GRADIENT = np.array([[3.0, -4.0], [0.0, 0.0], [0.0, 12.0]], np.float32)
FORMS = {
    "dense": lambda: tf.constant(GRADIENT),
    "slices": lambda: tf.IndexedSlices(tf.constant(GRADIENT), tf.constant([0, 1, 2]), [3, 2]),
    # The slices of row 0 are summed before the bounds apply.
    "slices of one row": lambda: tf.IndexedSlices(
        tf.constant([[1.0, -4.0], [0.0, 12.0], [2.0, 0.0]]), tf.constant([0, 2, 0]), [3, 2]
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((None, None), GRADIENT),
        ((None, 3.5), np.clip(GRADIENT, -3.5, 3.5)),
        ((6.5, None), GRADIENT / 2),
        ((6.5, 1.75), np.clip(GRADIENT / 2, -1.75, 1.75)),
        ((100.0, None), GRADIENT),
        ((None, 0.0), np.zeros_like(GRADIENT)),
    ],
    ids=["none", "value", "norm", "norm, then value", "a loose norm", "value 0"],
)
def test_gradients_are_clipped_as_numpy_clips_the_whole_gradient(form, bounds, expected):
    with tf.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable("v", [3, 2])
        (clipped, of), (none, _) = Compiled(None, None, [], None, *bounds).clipped(
            [(FORMS[form](), variable), (None, variable)]
        )
        assert of is variable and none is None
        np.testing.assert_allclose(session.run(tf.convert_to_tensor(clipped)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("monitor", "mode", "values", "better"),
    [
        ("val_loss", "auto", [2.0, 1.0, 1.0, 1.5, 0.5], [True, True, False, False, True]),
        ("val_auc", "auto", [0.5, 0.4, 0.6], [True, False, True]),
        ("val_accuracy", "auto", [0.5, 0.4, 0.6], [True, False, True]),
        ("val_auc", "min", [0.5, 0.4, 0.6], [True, True, False]),
        ("loss", "max", [1.0, 2.0], [True, True]),
        ("loss", "auto", [np.nan, 1.0, np.nan, 0.5], [False, True, False, True]),
    ],
)
def test_an_epoch_is_the_best_if_its_value_is_better_than_all_before(monitor, mode, values, better):
    best = Best(monitor, mode)
    assert [best.improves({monitor: value, "other": 0.0}) for value in values] == better


def test_each_epoch_is_saved_with_a_warning_if_the_value_is_unknown(caplog):
    with caplog.at_level(logging.WARNING, "lockstep"):
        best = Best("val_loss", "auto")
        assert best.improves({"loss": 1.0, "auc": 0.5}) and best.improves({"loss": 2.0, "auc": 0.5})
    assert "fit: monitor is 'val_loss', wanted one of loss, auc; each epoch is saved" in caplog.text


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="^fit: mode is 'best', wanted 'auto', 'min' or 'max'$"):
        Best("loss", "best")


class Recorder:
    """A callback that records its calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


class Saver(Recorder):
    """A callback whose class has the name of one of Keras."""


class Logger(Recorder):
    """As `Saver`."""


Saver.__name__, Logger.__name__ = "ModelCheckpoint", "CSVLogger"


class Own(Saver):
    """A subclass of such a callback."""


class Model:
    """The object that callbacks get."""

    stop_training = True


def test_callbacks_get_the_model_the_parameters_and_each_event():
    model, recorder = Model(), Recorder()
    calls = Callbacks(model, [recorder], {"epochs": 2})
    calls.tell("on_epoch_begin", 0)
    calls.batch(1, {"loss": 0.5, "train": None})
    assert model.stop_training is False
    assert recorder.calls == [
        ("set_params", {"epochs": 2}),
        ("set_model", model),
        ("on_epoch_begin", 0),
        ("on_train_batch_end", 1, {"loss": 0.5}),
    ]


@pytest.mark.parametrize("callback", [Saver, Own])
def test_callbacks_that_save_models_are_refused(callback):
    with pytest.raises(NotImplementedError, match=f"^fit: {callback.__name__} saves models of Keras.*checkpoint_dir"):
        Callbacks(Model(), [callback()], {})


@pytest.mark.parametrize(("rank", "told"), [(0, 2), (1, 0)])
def test_callbacks_that_write_logs_are_called_on_worker_0_alone(monkeypatch, rank, told):
    monkeypatch.setattr(type(context), "is_chief", property(lambda self: rank == 0))
    logger = Logger()
    Callbacks(Model(), [logger], {})
    assert len(logger.calls) == told


@pytest.mark.parametrize("make", [tf.data.Dataset, tf1.data.Dataset], ids=["v2", "v1"])
def test_batches_restart_with_the_initializer(make):
    with tf.Graph().as_default(), tf1.Session() as session:
        restart, features, labels = graph_parts.batches_of(make.from_tensor_slices(([1, 2], [3, 4])), "fit")
        for _ in range(2):
            session.run(restart)
            assert session.run((features, labels)) == (1, 3)


@pytest.mark.parametrize("batch", [{"a": 1}, ({"a": 1}, 2)], ids=["features", "features and labels"])
def test_batches_for_a_prediction_may_lack_labels(batch):
    with tf.Graph().as_default(), tf1.Session() as session:
        restart, *found = graph_parts.batches_of(tf.data.Dataset.from_tensors(batch), "predict", labelled=False)
        session.run(restart)
        assert session.run([part for part in found if part is not None]) == [*(batch if len(batch) == 2 else (batch,))]


@pytest.mark.parametrize(
    ("batch", "labelled", "count"),
    [(1.0, True, 1), ({"a": 1.0}, True, 1), ((1.0,), True, 1), ((1.0, 2.0, 3.0), True, 3), ((1.0,), False, 1)],
    ids=str,
)
def test_batches_of_another_number_of_parts_are_refused(batch, labelled, count):
    message = rf"^fit: got {count} part\(s\) in a batch of the dataset, wanted 2: features and labels$"
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        graph_parts.batches_of(tf.data.Dataset.from_tensors(batch), "fit", labelled)


def test_other_data_than_a_dataset_is_refused():
    with pytest.raises(ValueError, match=r"^fit: got list \[1, 2\], wanted a dataset of batches$"):
        graph_parts.batches_of([1, 2], "fit")


def test_data_without_a_batch_is_an_error_and_its_end_a_warning(caplog):
    with pytest.raises(ValueError, match="^fit: the data has no batch on any worker$"):
        graph_parts.no_data("fit", History())
    with caplog.at_level(logging.WARNING, "lockstep"):
        graph_parts.no_data("fit", History({"loss": [1.0, 2.0]}, [0, 1]))
    assert "fit: the data has ended after 2 epochs" in caplog.text


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Returns the prefix of a checkpoint with a/w = [1, 2], b = 3 and the global step 7."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("a/w", initializer=[1.0, 2.0])
        tf1.get_variable("b", initializer=3.0)
        tf1.get_variable("global_step", initializer=tf.constant(7, tf.int64))
        session.run(tf1.global_variables_initializer())
        return tf1.train.Saver().save(session, str(tmp_path_factory.mktemp("saved") / "model"))


def _loaded(path, name, skip, shapes):
    """Returns the variables, all 0 before, after the load of a checkpoint."""
    with tf.Graph().as_default(), tf1.Session() as session:
        made = [
            tf1.get_variable(name, shape, tf.int64 if name == "global_step" else None, tf1.zeros_initializer())
            for name, shape in shapes.items()
        ]
        init = graph_parts.loading(path, name, skip, made)
        session.run(tf1.global_variables_initializer())
        init(None, session)
        return [np.asarray(value).tolist() for value in session.run(made)]


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        (None, {"a/w": [2], "b": [], "global_step": []}, [[1.0, 2.0], 3.0, 0]),
        ("a/", {"a/w": [2], "b": []}, [[1.0, 2.0], 0.0]),
        (None, {"a/w": [3], "b": []}, [[0.0, 0.0, 0.0], 3.0]),
        (None, {"c": [], "b": []}, [0.0, 3.0]),
        (None, {"c": []}, [0.0]),
    ],
    ids=["all but the step", "by name", "another shape", "not there", "nothing to load"],
)
def test_variables_that_the_checkpoint_has_are_loaded(checkpoint, name, shapes, expected):
    assert _loaded(checkpoint, name, True, shapes) == expected


def test_variables_that_the_checkpoint_lacks_are_named(checkpoint, caplog):
    shapes = {"a/w": [3], "b": [], "c": []}
    with pytest.raises(ValueError, match="^load_weights: '.*model' lacks a/w, c, or has them in another shape$"):
        _loaded(checkpoint, None, False, shapes)
    with caplog.at_level(logging.WARNING, "lockstep"):
        _loaded(checkpoint, None, True, shapes)
    assert "lacks a/w, c, or has them in another shape" in caplog.text
