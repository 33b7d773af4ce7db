"""Dynamic tables in exported models: stock TensorFlow gives the same results as the training program's evaluation."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep import _assembly  # noqa: F401  # the savers of tables
from lockstep._src.saving.saved_models import export
from lockstep._src.tables import dynamic

DIM = 4
IDS = np.array([[3, 5, -7], [900, 3, 11]], np.int64)
_SERVE = """
import sys
import numpy as np
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
ids = np.load(sys.argv[2])
feeds = {"ids": tf.constant(ids), "words": tf.constant(ids.astype(str))}
outputs = model.signatures["serving_default"](**feeds)
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
    signature = meta.signature_def["serving_default"]
    names = {name: info.name for name, info in signature.outputs.items()}
    fed = {info.name: feeds[name].numpy() for name, info in signature.inputs.items()}
    again = session.run(names, fed)
for name, value in outputs.items():
    np.testing.assert_array_equal(value, again[name], err_msg=name)
assert not [name for name in sys.modules if name.split(".")[0] in ("lockstep", "hybridbackend")]
np.savez(sys.argv[3], **{name: value.numpy() for name, value in outputs.items()})
"""


def tables():
    """Returns tables with all kinds of admission filters and initial rows."""
    make = dynamic.get_embedding_variable
    option, counted = dynamic.EmbeddingVariableOption, dynamic.CounterFilter(2)
    unseen = dynamic.InitializerOption(default_value_no_permission=0.5)
    return {
        "drawn": make("drawn", DIM, initializer=tf.random_normal_initializer(seed=1)),
        "constant": make("constant", DIM, initializer=tf.constant_initializer(0.25)),
        "counted": make("counted", DIM, ev_option=option(filter_option=counted, init_option=unseen)),
        "half": make("half", DIM, value_dtype=tf.float16, initializer=tf.ones_initializer()),
        "words": make("words", DIM, key_dtype=tf.string, initializer=tf.zeros_initializer()),
        "none": make("none", DIM, initializer=tf.constant_initializer(7.0), ev_option=option(filter_option=counted)),
    }


def outputs(ids, words):
    """Returns the outputs of a model: the rows of each table, and for one table also sums by a combiner."""
    rows = {name: tf.nn.embedding_lookup(table, words if name == "words" else ids) for name, table in tables().items()}
    with tf.variable_scope("", reuse=True):
        sparse = tf.sparse.from_dense(ids)
        pooled = tf.nn.embedding_lookup_sparse(
            dynamic.get_embedding_variable("drawn", DIM), sparse, None, combiner="mean"
        )
    return {**rows, "pooled": pooled}


def placeholders():
    return {"ids": tf.placeholder(tf.int64, [None, None]), "words": tf.placeholder(tf.string, [None, None])}


def signature():
    fed = placeholders()
    return tf.saved_model.predict_signature_def(fed, outputs(**fed))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a checkpoint of the tables after some steps, and the results of an evaluation."""
    path = str(tmp_path_factory.mktemp("trained") / "model.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        fed = placeholders()
        rows = outputs(**fed)
        loss = tf.add_n(
            [tf.reduce_sum(tf.square(tf.cast(r, tf.float32) - 2.0)) for n, r in rows.items() if n != "none"]
        )
        step = tf.train.AdagradOptimizer(0.1).minimize(loss)
        with dynamic.evaluating(), tf.variable_scope("", reuse=True):
            evaluated = outputs(**fed)
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        rng = np.random.default_rng(3)
        for _ in range(5):
            batch = rng.integers(-9, 12, [3, 4])
            session.run(step, {fed["ids"]: batch, fed["words"]: batch.astype(str)})
        saver.save(session, path)
        had = session.run(evaluated, {fed["ids"]: IDS, fed["words"]: IDS.astype(str)})
    return path, had


@pytest.mark.parametrize("updatable", [False, True])
def test_plain_tensorflow_serves_the_rows_of_admitted_keys(trained, tmp_path, updatable):
    path, had = trained
    directory = export(tmp_path, path, signature, updatable=updatable)
    np.save(tmp_path / "ids.npy", IDS)
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", _SERVE, directory, f"{tmp_path}/ids.npy", f"{tmp_path}/out.npz"]
    subprocess.run(command, check=True, env=environ, timeout=500)
    served = dict(np.load(tmp_path / "out.npz"))
    unseen = IDS == 900
    np.testing.assert_allclose(served.pop("pooled"), had["pooled"], rtol=1e-6)
    for name, value in served.items():
        np.testing.assert_array_equal(value, had[name], err_msg=name)
    assert served["half"].dtype == np.float16
    np.testing.assert_array_equal(served["drawn"][unseen], 0.0)
    np.testing.assert_array_equal(served["counted"][unseen], 0.5)
    np.testing.assert_array_equal(served["constant"][unseen], 0.25)
    # Slots, and keys that are not admitted, are not exported.
    names = tf.train.load_checkpoint(os.path.join(directory, "variables", "variables")).get_variable_to_shape_map()
    assert sorted(names) == sorted(f"{name}-{part}" for name in tables_names() for part in ("keys", "values"))


def tables_names():
    return ["drawn", "constant", "counted", "half", "words", "none"]


def test_missing_and_different_tables_of_the_checkpoint_are_named(trained, tmp_path):
    path, _ = trained

    def of(name, dim=DIM, **options):
        def build():
            ids = tf.placeholder(options.get("key_dtype", tf.int64), [None])
            table = dynamic.get_embedding_variable(name, dim, **options)
            return tf.saved_model.predict_signature_def({"ids": ids}, {"rows": tf.nn.embedding_lookup(table, ids)})

        return build

    with pytest.raises(ValueError, match="model.ckpt.*dynamic table user is missing"):
        export(tmp_path, path, of("user"))
    with pytest.raises(
        ValueError, match=r"table drawn has keys int64 and rows \[\d+, 4\], the model int64 and \[\d+, 8\]"
    ):
        export(tmp_path, path, of("drawn", 8))
    with pytest.raises(ValueError, match="table drawn has keys int64 .*, the model string"):
        export(tmp_path, path, of("drawn", key_dtype=tf.string))


def test_an_exported_table_is_read_only(trained, tmp_path):
    def build():
        table = dynamic.get_embedding_variable("drawn", DIM)
        with pytest.raises(
            NotImplementedError, match="'drawn' is dynamic and does not support insert; an exported model looks keys up"
        ):
            table.insert([1], [[0.0] * DIM])
        return tf.saved_model.predict_signature_def({"x": tf.placeholder(tf.float32)}, {"n": table.total_count()})

    for updatable in (False, True):
        directory = export(tmp_path, trained[0], build, updatable=updatable)
        with tf.Graph().as_default(), tf.Session() as session:
            loaded = tf.saved_model.load(session, ["serve"], directory).signature_def["serving_default"]
            count = session.run(loaded.outputs["n"].name)
        assert count == len(tf.train.load_variable(trained[0], "drawn-keys"))
