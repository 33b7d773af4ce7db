"""Tests of LockstepShareDataset, which leaves the elements of its input as they are."""

import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.engine.library import ops


def share(dataset):
    variant = ops.lockstep_share_dataset(dataset._variant_tensor, **dataset._flat_structure)
    return dataset_ops._VariantDataset(variant, dataset.element_spec)


def elements():
    return tf.data.Dataset.range(6).map(lambda i: {"i": i, "text": tf.strings.as_string(i), "row": tf.fill([i], 1.5)})


def test_elements_are_those_of_the_input():
    got = share(elements())
    assert got.element_spec == elements().element_spec and got.cardinality() == 6
    tf.nest.map_structure(tf.debugging.assert_equal, list(got), list(elements()))
    assert [int(one["i"]) for one in got.skip(2).take(3)] == [2, 3, 4]


def test_the_position_is_saved_and_restored(tmp_path):
    iterator = iter(share(elements()))
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "position")
    iterator = iter(share(elements()))
    tf.train.Checkpoint(iterator=iterator).restore(path)
    assert [int(one["i"]) for one in iterator] == [1, 2, 3, 4, 5]


def test_errors_are_those_of_the_input():
    dataset = tf.data.Dataset.range(3).map(
        lambda i: tf.debugging.check_numerics(1.0 / tf.cast(1 - i, tf.float32), "one")
    )
    iterator = iter(share(dataset))
    assert next(iterator) == 1.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="one"):
        next(iterator)
    assert next(iterator) == -1.0


def test_a_graph_with_the_dataset_can_be_written_and_read():
    graph = share(elements())._as_serialized_graph()
    read = tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph), elements().element_spec)
    tf.nest.map_structure(tf.debugging.assert_equal, list(read), list(elements()))
