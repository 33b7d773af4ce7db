"""Tests of LockstepRebatchDataset: batches of another size, against lists of rows."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from lockstep._src.engine.library import ops

ROWS = 23
SPECS = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2], tf.float32)) + (tf.TensorSpec([None], tf.int64),) * 2


def batches(size):
    """Returns batches of row numbers, matrices, and lists: each number i, i % 3 times."""
    numbers = tf.data.Dataset.range(ROWS).batch(size)
    return numbers.map(
        lambda i: (
            i,
            tf.cast(i[:, None] * [1, 10], tf.float32),
            tf.repeat(i, i % 3),
            tf.cumsum(tf.pad(i % 3, [[1, 0]])),
        )
    )


def rebatch(dataset, size, buffer=0, seed=0, specs=SPECS, ragged_ranks=(0, 0, 1), **more):
    variant = ops.lockstep_rebatch_dataset(
        dataset._variant_tensor,
        batch_size=tf.constant(size, tf.int64),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=tf.constant(seed, tf.int64),
        seed2=tf.constant(0, tf.int64),
        ragged_ranks=list(ragged_ranks),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        **more,
    )
    return dataset_ops._VariantDataset(variant, specs)


def numbers_of(dataset):
    """Returns the row numbers of each batch, and asserts that each row is whole."""
    found = []
    for numbers, matrix, values, splits in dataset.as_numpy_iterator():
        found.append(numbers.tolist())
        np.testing.assert_array_equal(matrix, numbers[:, None] * [1, 10])
        lists = [values[begin:end].tolist() for begin, end in zip(splits, splits[1:], strict=False)]
        assert lists == [[i] * (i % 3) for i in numbers]
    return found


@pytest.mark.parametrize("size", [1, 5, 40])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_rows_keep_their_order(size, drop_remainder):
    rows = list(range(ROWS))
    got = numbers_of(rebatch(batches(size), 8, drop_remainder=drop_remainder))
    assert got == [rows[:8], rows[8:16]] + [rows[16:]] * (not drop_remainder)


def test_a_row_is_drawn_from_the_next_ones_alike_for_one_seed():
    first, again, other = (numbers_of(rebatch(batches(5), 4, buffer=6, seed=seed)) for seed in (2, 2, 3))
    assert first == again != other
    assert sorted(sum(first, [])) == list(range(ROWS)) != sum(first, [])
    assert all(max(batch) < 6 + 4 * (number + 1) for number, batch in enumerate(first))
    assert first == numbers_of(rebatch(batches(7), 4, buffer=6, seed=2)), "draws depend on rows, not on batches"


@pytest.mark.parametrize("reshuffle", [False, True])
def test_each_pass_draws_again_unless_told_otherwise(reshuffle):
    dataset = rebatch(batches(5), 4, buffer=100, seed=3, reshuffle_each_iteration=reshuffle)
    assert (numbers_of(dataset) != numbers_of(dataset)) == reshuffle


@pytest.mark.parametrize("buffer", [0, 9])
def test_the_position_is_saved_and_restored(tmp_path, buffer):
    dataset = rebatch(batches(5), 4, buffer=buffer, seed=3, reshuffle_each_iteration=False)
    whole = numbers_of(dataset)
    iterator = iter(dataset)
    for _ in range(2):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(tmp_path / "position")
    iterator = iter(dataset)
    tf.train.Checkpoint(iterator=iterator).restore(path)
    assert [batch[0].numpy().tolist() for batch in iterator] == whole[2:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, "batch_size is 0, wanted 1 or more"),
        ({"size": 2, "buffer": -1}, "buffer_size is -1, wanted 0 or more"),
        ({"size": 2, "ragged_ranks": (0, 1)}, "the columns have 3 tensors, and an element of the dataset has 4"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(rebatch(batches(5), **changes))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (([1, 2], [[0.0, 0.0]], [], [0, 0, 0]), "component 1 has 1 rows, and component 0 has 2"),
        (([1], [[0.0, 0.0]], [4], [0, 2]), "component 2: "),
        (([1, 2], [[0.0, 0.0]] * 2, [4], [0, 1]), "component 2 has 1 rows, and component 0 has 2"),
    ],
)
def test_an_element_that_is_no_batch_fails_after_the_rows_before_it(second, message):
    def elements():
        for element in (([7, 8], [[0.0, 0.0]] * 2, [5], [0, 1, 1]), second):
            yield tuple(np.array(part, spec.dtype.as_numpy_dtype) for part, spec in zip(element, SPECS, strict=True))

    source = tf.data.Dataset.from_generator(elements, output_signature=SPECS)
    iterator = iter(rebatch(source, 2))
    assert next(iterator)[0].numpy().tolist() == [7, 8]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iterator)
