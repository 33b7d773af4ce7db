"""The façade has the names and signatures of DeepRec's documents, and its modules have DeepRec's import paths."""

import inspect
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import _lockstep_deeprec
import deeprec
import deeprec.feature_column
import deeprec.nn
import lockstep.estimator
import lockstep.train

v1 = tf.compat.v1
pytestmark = pytest.mark.oldest

# Parameters and defaults as documented.
SIGNATURES = {
    "CollectiveStrategy": "()",
    "CollectiveStrategy.scope": "(self, *args, **kwargs)",
    "CollectiveStrategy.embedding_scope": "(self, **kwargs)",
    "CollectiveStrategy.estimator": "(self, model_fn, **kwargs)",
    "CollectiveStrategy.export_saved_model": (
        "(self, savedmodel_dir, checkpoint_dir=None, signature_def_fn=None, assets_extra=None, as_text=False, "
        "clear_devices=True, strip_default_attrs=True)"
    ),
    "nn.group_embedding_lookup": "(params, ids, partition_strategy='mod', name=None)",
    "nn.group_embedding_lookup_sparse": (
        "(params, sp_ids, combiners, sp_weights=None, partition_strategy='mod', is_sequence=False, "
        f"params_num_per_group={sys.maxsize}, name=None)"
    ),
    "get_embedding_variable": (
        "(name, embedding_dim, key_dtype=tf.int64, value_dtype=tf.float32, initializer=None, regularizer=None, "
        "trainable=True, collections=None, caching_device=None, partitioner=None, validate_shape=True, "
        "custom_getter=None, constraint=None, init_data_source=None, ev_option=None)"
    ),
    "InitializerOption": "(initializer=None, default_value_dim=4096, default_value_no_permission=0.0)",
    "GlobalStepEvict": "(steps_to_live=None)",
    "L2WeightEvict": "(l2_weight_threshold=-1.0)",
    "CounterFilter": "(filter_freq=0)",
    "CBFFilter": ("(filter_freq=0, max_element_size=0, false_positive_probability=-1.0, counter_type=tf.uint64)"),
    "CheckpointOption": (
        "(ckpt_to_load_from=None, tensor_name_in_ckpt=None, always_load_from_specific_ckpt=False, "
        "init_data_source=None)"
    ),
    "feature_column.categorical_column_with_embedding": ("(key, dtype=tf.string, partition_num=None, ev_option=None)"),
    "feature_column.sequence_categorical_column_with_embedding": (
        "(key, dtype=tf.string, partition_num=None, ev_option=None)"
    ),
    "feature_column.group_embedding_column_scope": "(name='')",
    "feature_column.embedding_column": (
        "(categorical_column, dimension, combiner='mean', initializer=None, ckpt_to_load_from=None, "
        "tensor_name_in_ckpt=None, max_norm=None, trainable=True, use_safe_embedding_lookup=True, do_fusion=False)"
    ),
    "feature_column.shared_embedding_columns": (
        "(categorical_columns, dimension, combiner='mean', initializer=None, shared_embedding_collection_name=None, "
        "ckpt_to_load_from=None, tensor_name_in_ckpt=None, max_norm=None, trainable=True, "
        "use_safe_embedding_lookup=True)"
    ),
}


def find(path):
    found = deeprec
    for name in path.split("."):
        found = getattr(found, name)
    return found


# Promise (deeprec.md): names and signatures are DeepRec's; arguments are honoured or refused.
@pytest.mark.parametrize("path", SIGNATURES)
def test_signature(path):
    signature = inspect.signature(find(path))
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(plain)) == SIGNATURES[path]


def test_options_of_embedding_variables_begin_with_deeprecs():
    names = list(inspect.signature(deeprec.EmbeddingVariableOption).parameters)
    assert names[:7] == (
        ["ht_type", "ht_partition_num", "evict_option", "ckpt", "filter_option", "storage_option", "init_option"]
    )
    names = list(inspect.signature(deeprec.StorageOption).parameters)
    assert names == ["storage_type", "storage_path", "storage_size", "cache_strategy"]


@pytest.mark.parametrize("name", deeprec.__all__)
def test_every_exported_name_is_there(name):
    assert getattr(deeprec, name) is not None


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        deeprec.nothing  # noqa: B018


def test_the_strategy_is_imported_as_deeprec_has_it():
    from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy

    assert CollectiveStrategy is deeprec.CollectiveStrategy is lockstep.train.CollectiveStrategy


def test_kinds_of_storage_are_imported_as_deeprec_has_them():
    from tensorflow.core.framework.embedding import config_pb2

    option = deeprec.StorageOption(config_pb2.StorageType.DRAM, cache_strategy=config_pb2.CacheStrategy.LRU)
    assert (option.storage_type, option.cache_strategy) == (deeprec.StorageType.DRAM, deeprec.CacheStrategy.LRU)
    with pytest.raises(NotImplementedError, match="tables are in memory"):
        deeprec.StorageOption(config_pb2.StorageType.SSDHASH, "/tmp/ssd")


# Promise (deeprec.md): names and signatures are DeepRec's; arguments are honoured or refused.
def test_what_deeprec_drops_is_honoured_or_refused():
    strategy = deeprec.CollectiveStrategy()
    with strategy.scope(grad_nbuckets=3), strategy.embedding_scope(batch_size=7):
        options = lockstep.context.options
        assert (options.grad_nbuckets, options.batch_size, options.sharding) == (3, 7, True)
    with pytest.raises(TypeError, match="wanted options by name"):
        strategy.scope("/gpu:0")
    with pytest.raises(AttributeError, match="unknown option 'device'"), strategy.embedding_scope(device=1):
        pass
    with pytest.raises(TypeError, match="modeldir"):
        strategy.estimator(lambda features: None, modeldir="x")


# Promise (deeprec.md): `export_saved_model` takes all its arguments and serves sharded and dynamic tables.
@pytest.mark.parametrize(("folder", "as_text"), [(None, True), ("model", False)], ids=["own", "given"])
def test_an_export_of_the_strategy_serves_what_was_trained(tmp_path, folder, as_text):
    """Passes all arguments in DeepRec's order, with a sharded and a dynamic table."""
    strategy = deeprec.CollectiveStrategy()
    (tmp_path / "source.txt").write_text("note")

    def model():
        with strategy.embedding_scope():
            split = v1.fixed_size_partitioner(strategy.world_size)
            items = v1.get_variable("items", [9, 2], initializer=v1.zeros_initializer(), partitioner=split)
            users = deeprec.get_embedding_variable("users", 2, initializer=v1.ones_initializer())
        ids = v1.placeholder(tf.int64, [None])
        return ids, tf.nn.embedding_lookup(items, ids) + tf.nn.embedding_lookup(users, ids)

    def signature():
        ids, rows = model()
        return v1.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})

    with strategy.scope(model_dir=str(tmp_path / "model")):
        with tf.Graph().as_default():
            ids, rows = model()
            step = v1.train.get_or_create_global_step()
            train = v1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(rows), global_step=step)
            with v1.train.MonitoredTrainingSession() as session:
                session.run(train, {ids: [1, 5]})
        checkpoints, assets = folder and tmp_path / folder, {"a/note": tmp_path / "source.txt"}
        directory = strategy.export_saved_model(
            tmp_path / "export", checkpoints, signature, assets, as_text, False, False
        )
        assert Path(directory, "assets.extra", "a", "note").read_text() == "note"
        assert Path(directory, f"saved_model.pb{'txt' * as_text}").is_file()
        served = tf.saved_model.load(directory).signatures["serving_default"](tf.constant([1, 2, 5], tf.int64))
        np.testing.assert_array_equal(served["rows"], [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])


# Promise (deeprec.md): `export_saved_model` takes all its arguments and serves sharded and dynamic tables.
def test_a_model_function_that_returns_none_is_refused_by_its_mode(tmp_path):
    """The manual's function returns None in evaluations."""

    def model_fn(features, mode):
        if mode != "train":
            return None
        step = v1.train.get_or_create_global_step()
        return lockstep.estimator.EstimatorSpec(mode, loss=tf.reduce_sum(features), train_op=step.assign_add(1))

    estimator = deeprec.CollectiveStrategy().estimator(model_fn=model_fn, model_dir=str(tmp_path), config=None)
    estimator.train(lambda: tf.data.Dataset.from_tensors(1.0))
    with pytest.raises(ValueError, match="model_fn returned None for mode 'eval', wanted an EstimatorSpec"):
        estimator.evaluate(lambda: tf.data.Dataset.from_tensors(1.0))


# Promise (deeprec.md): names and signatures are DeepRec's; arguments are honoured or refused.
@pytest.mark.parametrize("backend", ["hb", "sok", None])
def test_there_is_one_default(monkeypatch, backend):
    monkeypatch.delenv("COLLECTIVE_STRATEGY", raising=False)
    if backend is not None:
        monkeypatch.setenv("COLLECTIVE_STRATEGY", backend)
    assert deeprec.CollectiveStrategy().backend == (backend or "hb")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("-m tensorflow.python.distribute.launch python main.py", True),
        ("-mtensorflow.python.distribute.launch", True),
        ("-um tensorflow.python.distribute.launch", True),
        ("-W ignore -X dev --check-hash-based-pycs never -m tensorflow.python.distribute.launch", True),
        ("-Wcm -u -m tensorflow.python.distribute.launch", True),
        ("-m tensorflow.python.distribute", False),
        ("-m", False),
        ("-c print() -m tensorflow.python.distribute.launch", False),
        ("main.py -m tensorflow.python.distribute.launch", False),
        ("- -m tensorflow.python.distribute.launch", False),
        ("", False),
    ],
)
def test_the_launchers_command_line_is_recognized(words, found):
    assert _lockstep_deeprec.is_launcher(["python", *words.split()]) == found


# Promise (deeprec.md): the launcher starts a worker for each GPU, and returns the exit code of the first failure.
def test_the_launcher_does_not_load_tensorflow():
    shows = "import sys; print([m for m in sys.modules if m.startswith('tensorflow')])"
    command = [sys.executable, "-X", "importtime", "-m", _lockstep_deeprec.LAUNCHER, sys.executable, "-c", shows]
    run = subprocess.run(command, env={"LOCKSTEP_TF1": "0"}, capture_output=True, text=True, timeout=500, check=True)
    assert run.stdout == "[]\n"
    assert "deeprec" in run.stderr and "tensorflow.python.eager" not in run.stderr


def test_deeprecs_own_tensorflow_is_refused(tmp_path):
    module = tmp_path / deeprec._DEEPREC_FILE
    module.parent.mkdir(parents=True)
    module.touch()
    with pytest.raises(ImportError, match="is DeepRec's, which already has the modules that lockstep-deeprec provides"):
        deeprec._refuse_originals([str(tmp_path)])
    assert isinstance(deeprec, types.ModuleType)
