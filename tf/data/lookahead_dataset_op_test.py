"""Tests of LockstepLookaheadDataset, whose elements come with the number of elements that follow."""

import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.engine.library import ops

COUNT = tf.TensorSpec([], tf.int64)


def lookahead(dataset, ahead, spec=None):
    specs = [*tf.nest.flatten(dataset.element_spec), COUNT] if spec is None else spec
    variant = ops.lockstep_lookahead_dataset(
        dataset._variant_tensor,
        ahead=ahead,
        output_types=[one.dtype for one in specs],
        output_shapes=[one.shape for one in specs],
    )
    return dataset_ops._VariantDataset(variant, tuple(specs))


@pytest.mark.parametrize("ahead", [1, 2, 9])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_elements_come_with_the_number_that_follow(ahead, size):
    dataset = tf.data.Dataset.range(size).map(lambda i: (i, tf.strings.as_string(i)))
    wanted = [(i, str(i).encode(), min(ahead, size - 1 - i)) for i in range(size)]
    assert list(lookahead(dataset, ahead).as_numpy_iterator()) == wanted
    assert lookahead(dataset, ahead).cardinality() == size


def test_an_error_comes_early_and_loses_no_element():
    dataset = tf.data.Dataset.range(5).map(lambda i: tf.cast(i, tf.float32))
    failing = dataset.map(lambda x: tf.debugging.check_numerics(tf.where(x == 2, x / 0.0, x), "the third"))
    iterator = iter(lookahead(failing, 2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the third"):
        next(iterator)
    assert [tuple(tensor.numpy().item() for tensor in element) for element in iterator] == [
        (0, 2),
        (1, 2),
        (3, 1),
        (4, 0),
    ]


@pytest.mark.parametrize("taken", [0, 2, 5])
def test_elements_that_were_read_ahead_are_in_the_iterators_state(tmp_path, taken):
    def checkpoint():
        iterator = iter(lookahead(tf.data.Dataset.range(5), 2))
        return iterator, tf.train.Checkpoint(iterator=iterator)

    iterator, saved = checkpoint()
    for _ in range(taken):
        next(iterator)
    path = saved.save(tmp_path / "position")
    iterator, restored = checkpoint()
    restored.restore(path)
    assert [tuple(tensor.numpy() for tensor in element) for element in iterator] == [
        (i, min(2, 4 - i)) for i in range(taken, 5)
    ]


def test_other_numbers_of_tensors_and_no_lookahead_are_refused():
    dataset = tf.data.Dataset.range(3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has 1 tensors, and output_types has 1, wanted one more"):
        lookahead(dataset, 1, [COUNT])
    with pytest.raises(tf.errors.InvalidArgumentError, match="ahead.* 0"):
        lookahead(dataset, 0)
