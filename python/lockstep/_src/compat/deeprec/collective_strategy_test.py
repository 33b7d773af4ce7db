"""DeepRec's strategy on one worker. The façade's names and its exports: tests/surface/deeprec_test.py."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.compat.deeprec.collective_strategy import CollectiveStrategy
from lockstep._src.engine.context import context
from lockstep._src.tables import sharded

tf1 = tf.compat.v1


@pytest.mark.parametrize(("name", "number"), [("world_size", 1), ("rank", 0)])
def test_a_number_is_also_a_function(name, number):
    value = getattr(CollectiveStrategy(), name)
    assert isinstance(value, int) and value == value() == number and [5, 6][value] == 5 + number
    assert f"{value}" == str(number) and type(value()) is int


@pytest.mark.parametrize("backend", ["hb", "sok", None])
def test_the_variable_names_the_backend(monkeypatch, backend):
    monkeypatch.delenv("COLLECTIVE_STRATEGY", raising=False)
    if backend is not None:
        monkeypatch.setenv("COLLECTIVE_STRATEGY", backend)
    strategy = CollectiveStrategy()
    assert strategy.backend == (backend or "hb")
    assert repr(strategy) == f"CollectiveStrategy(backend={strategy.backend!r}, rank=0, world_size=1)"


def test_options_apply_and_tables_are_sharded_in_the_scopes():
    strategy = CollectiveStrategy()
    with tf.Graph().as_default(), strategy.scope(grad_nbuckets=3):
        weights = tf1.get_variable("weights", [8, 2])
        with strategy.embedding_scope(batch_size=7):
            table = tf1.get_variable("table", [8, 2])
            assert (context.options.grad_nbuckets, context.options.batch_size) == (3, 7)
    assert [sharded.is_sharded(v) for v in (weights, table)] == [False, True]


def signature():
    x = tf1.placeholder(tf.float32, [None])
    return tf1.saved_model.predict_signature_def({"x": x}, {"y": x * tf1.get_variable("w", [])})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Returns a directory with two checkpoints: w = 2 after step 1, and w = 3 after step 2."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with tf.Graph().as_default(), tf1.Session() as session:
        w = tf1.get_variable("w", [], use_resource=True)
        saver = tf1.train.Saver()
        for step, value in ((1, 2.0), (2, 3.0)):
            w.load(value, session)
            saver.save(session, str(folder / "model"), step)
    return folder


@pytest.mark.parametrize(
    ("place", "factor"),
    [(lambda f: f, 3.0), (str, 3.0), (lambda f: f / "model-1", 2.0), (lambda f: None, 3.0)],
    ids=["path", "text", "prefix", "option"],
)
def test_an_export_has_the_values_of_the_checkpoint(checkpoints, tmp_path, place, factor):
    strategy = CollectiveStrategy()
    with strategy.scope(model_dir=str(checkpoints)):
        folder = strategy.export_saved_model(tmp_path, place(checkpoints), signature)
    with tf.Graph().as_default(), tf1.Session() as session:
        served = tf1.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        y = session.run(served.outputs["y"].name, {served.inputs["x"].name: [1.0, 5.0]})
    np.testing.assert_array_equal(y, [factor, 5 * factor])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda s, f: s.scope("/gpu:0"),
            TypeError,
            r"^CollectiveStrategy.scope: got \('/gpu:0',\), wanted options by name, such as seed=7$",
        ),
        (lambda s, f: s.scope(device=1).__enter__(), AttributeError, "unknown option 'device'"),
        (lambda s, f: s.embedding_scope(device=1).__enter__(), AttributeError, "unknown option 'device'"),
        (lambda s, f: s.estimator(lambda features: None, modeldir="x"), TypeError, "modeldir"),
        (
            lambda s, f: s.export_saved_model(f, f),
            ValueError,
            "^export_saved_model: signature_def_fn is None, wanted a function that builds the model$",
        ),
        (
            lambda s, f: s.export_saved_model(f, None, signature),
            ValueError,
            "^export_saved_model: checkpoint_dir and option model_dir are both None; pass checkpoint_dir$",
        ),
        (
            lambda s, f: s.export_saved_model(f, f, signature),
            ValueError,
            "^export_saved_model: no checkpoint in '",
        ),
    ],
    ids=["position", "scope", "embedding_scope", "estimator", "signature", "no checkpoint_dir", "no checkpoint"],
)
def test_an_error_says_what_was_wanted(tmp_path, call, error, message):
    with pytest.raises(error, match=message):
        call(CollectiveStrategy(), tmp_path)


def test_an_unknown_backend_is_refused(monkeypatch):
    monkeypatch.setenv("COLLECTIVE_STRATEGY", "nccl")
    with pytest.raises(ValueError, match="COLLECTIVE_STRATEGY='nccl': wanted hb or sok"):
        CollectiveStrategy()
