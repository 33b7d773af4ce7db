"""Tests that the names of SOK 1.x exist, and of the functions that need no layer."""

from __future__ import annotations

import importlib
import inspect
import sys

import numpy as np
import pytest
import tensorflow as tf

import sparse_operation_kit as sok
from lockstep._src.compat.sok import job, version_1
from lockstep.testing import call_workers
from sparse_operation_kit import experiment

NAMES = {
    "sparse_operation_kit": (
        "Init OptimizerScope DistributedEmbedding All2AllDenseEmbedding TFDistributedEmbedding get_embedding Saver "
        "split_embedding_variable_from_others GraphKeys core embeddings experiment kit_lib operations optimizers "
        "saver tf"
    ),
    "sparse_operation_kit.core": "EmbeddingVariable DenseEmbeddingLayerHandle SparseEmbeddingLayerHandle __version__",
    "sparse_operation_kit.core.inplace_initializer": "InPlaceInitializer",
    "sparse_operation_kit.embeddings.distributed_embedding": "DistributedEmbedding",
    "sparse_operation_kit.embeddings.all2all_dense_embedding": "All2AllDenseEmbedding",
    "sparse_operation_kit.embeddings.tf_distributed_embedding": "TFDistributedEmbedding",
    "sparse_operation_kit.embeddings.get_embedding_op": "get_embedding",
    "sparse_operation_kit.embeddings.embedding_ops": (
        "embedding_lookup embedding_lookup_sparse get_global_replica_id CommToolSet"
    ),
    "sparse_operation_kit.kit_lib": "in_tensorflow2 using_tf2",
    "sparse_operation_kit.operations": "unique unsorted_segment_sum",
    "sparse_operation_kit.optimizers": "Adam SGD split_embedding_variable_from_others",
    "sparse_operation_kit.saver": "Saver",
    "sparse_operation_kit.tf": "unique unsorted_segment_sum keras",
    "sparse_operation_kit.tf.keras": "optimizers mixed_precision",
    "sparse_operation_kit.tf.keras.optimizers": "Adam LazyAdamOptimizer",
    "sparse_operation_kit.tf.keras.mixed_precision": "LossScaleOptimizer",
}


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(job, "_tool", "single")
    monkeypatch.setattr(version_1, "_program", version_1._Program(2, None))


@pytest.mark.parametrize("module", NAMES)
def test_names_of_version_1(module):
    found = importlib.import_module(module)
    for name in NAMES[module].split():
        assert hasattr(found, name), name
        assert name in dir(found)


@pytest.mark.workers
def test_import_does_not_load_keras():
    assert call_workers(_modules_of_keras_after_import, 1) == [[]]


def _modules_of_keras_after_import():
    """Returns modules of Keras that the façade loads; TensorFlow itself loads some."""
    before = set(sys.modules)
    for name in [name for name in before if name.startswith("sparse_operation_kit")]:
        del sys.modules[name]
    for module in NAMES:
        importlib.import_module(module)
    return sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in ("keras", "tf_keras"))


def test_public_classes_have_signatures_and_docstrings():
    for owner, names in ((sok, NAMES["sparse_operation_kit"]), (sok.optimizers, "Adam")):
        for name in names.split():
            if not inspect.ismodule(found := getattr(owner, name)):
                assert inspect.getdoc(found), name
                assert not found.__module__.startswith("lockstep"), name
    signature = inspect.signature(sok.DistributedEmbedding)
    assert list(signature.parameters)[:6] == [
        "combiner",
        "max_vocabulary_size_per_gpu",
        "embedding_vec_size",
        "slot_num",
        "max_nnz",
        "max_feature_num",
    ]
    assert list(inspect.signature(sok.Saver.dump_to_file).parameters) == ["self", "embedding_variable", "filepath"]


def test_operations_for_gpus_are_errors():
    assert sok.kit_lib.in_tensorflow2()
    with pytest.raises(NotImplementedError, match="plugin_sparse_fprop: .* no counterpart here; use sok.Distributed"):
        sok.kit_lib.plugin_sparse_fprop(1, 2)
    assert not hasattr(sok.kit_lib, "get_nccl_unique_id")
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        _ = sok.kit_lib.unknown


def test_operations_are_those_of_tensorflow():
    distinct, places = sok.tf.unique(tf.constant([5, 3, 5]), out_idx=tf.int64)
    np.testing.assert_array_equal(distinct, [5, 3])
    np.testing.assert_array_equal(places, [0, 1, 0])
    np.testing.assert_array_equal(sok.tf.unsorted_segment_sum(tf.constant([1.0, 2.0]), [1, 1], 2), [0, 3])


def test_optimizers_by_names_of_tensorflow(started):
    assert isinstance(sok.tf.keras.optimizers.Adam(0.1), tf.keras.optimizers.Adam)
    assert isinstance(sok.tf.keras.optimizers.LazyAdamOptimizer(0.1), tf.compat.v1.train.AdamOptimizer)
    optimizer = sok.optimizers.Adam(0.1)
    assert isinstance(optimizer, sok.optimizers.Adam)
    assert type(optimizer).__module__ == "sparse_operation_kit.optimizers"
    layer = sok.All2AllDenseEmbedding(4, 2, 1, 1, dynamic_input=True, embedding_initializer="ones")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([3], tf.int64)))
    tables, others = sok.split_embedding_variable_from_others(layer.trainable_variables)
    assert not others
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables, strict=True))
    np.testing.assert_allclose(sok.export(layer.embedding_variable)[1], [[0.9, 0.9]], 1e-5)
    assert isinstance(layer.embedding_variable, sok.core.EmbeddingVariable)


def test_older_lookups(started):
    table = sok.Variable(np.arange(6.0).reshape(3, 2), dtype=tf.float32)
    ids = tf.RaggedTensor.from_row_lengths(tf.constant([0, 2, 1], tf.int64), [2, 1])
    for arguments in (([2], ["sum"]), (["sum"],), (None, ["sum"])):
        (found,) = experiment.lookup_sparse([table], [ids], *arguments)
        np.testing.assert_array_equal(found, [[4, 6], [2, 3]])
    found = experiment.lookup_sparse(table, ids, hotness=2, combiners="mean")
    np.testing.assert_array_equal(found, [[2, 3], [2, 3]])
    assert set(experiment.__all__) <= set(dir(experiment))
