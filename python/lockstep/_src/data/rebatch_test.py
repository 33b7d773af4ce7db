"""Batches of another size, in order and shuffled; tabular_test.py compares them with files."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.data.frames import Value
from lockstep._src.data.rebatch import RebatchDataset, rebatch

ROWS = 23


def test_batches_have_any_structure_and_ragged_tensors():
    source = tf.data.Dataset.range(10).batch(4)
    dataset = source.map(lambda i: (i, {"r": tf.RaggedTensor.from_row_lengths(tf.repeat(i, i), i), "n": i}))
    batches = list(dataset.apply(rebatch(6)))
    assert [b[0].numpy().tolist() for b in batches] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert batches[1][1]["r"].to_list() == [[i] * i for i in range(6, 10)]


def test_rows_may_have_no_elements():
    ragged = tf.RaggedTensor.from_row_lengths(tf.zeros([6, 0]), [1, 0, 2, 3])
    source = tf.data.Dataset.from_tensors({"none": tf.zeros([4, 2, 0]), "lists": ragged, "n": tf.range(4)})
    batches = list(source.apply(rebatch(3)))
    assert [batch["n"].numpy().tolist() for batch in batches] == [[0, 1, 2], [3]]
    assert [tuple(batch["none"].shape) for batch in batches] == [(3, 2, 0), (1, 2, 0)]
    assert [batch["lists"].row_lengths().numpy().tolist() for batch in batches] == [[1, 0, 2], [3]]


# Promise (hybridbackend.md): an error that names the component; the batches before it are good (HybridBackend, a wrong
# result: errors while rebatching are ignored: uninitialised tensors).
@pytest.mark.parametrize(
    ("second", "message"),
    [
        (([1, 2, 3], [[1.0], [2.0]], [0, 1, 2, 2]), "component 1 has 2 rows, and component 0 has 3"),
        (([1, 2, 3], [[1.0, 2.0]] * 3, [0, 1, 2, 2]), "component 1 has rows of shape .* after rows of another shape"),
        (([1, 2, 3], [[1.0]] * 3, [0, 1, 2]), "component 2 has 2 rows, and component 0 has 3"),
        (([1, 2, 3], [[1.0]] * 3, [0, 1, 2, 9]), "component 2: "),
        (([1, 2, 3], [[1.0]] * 3, [0, 2, 1, 2]), "component 2: "),
    ],
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_rebatch_fails_at_an_element_that_is_no_batch_after_the_rows_before_it(second, message, shuffled):
    def elements():
        for plain, matrix, splits in (([7, 8, 9], [[7.0], [8.0], [9.0]], [0, 1, 2, 2]), second):
            yield np.array(plain), np.array(matrix), np.array([4, 5]), np.array(splits)

    specs = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, None], tf.float64)]
    specs += [tf.TensorSpec([None], tf.int64)] * 2
    source = tf.data.Dataset.from_generator(elements, output_signature=tuple(specs))
    source = source.map(lambda x, y, values, splits: (x, y, Value(values, [splits])))
    batches = iter(RebatchDataset(source, None, 2, shuffle_buffer_size=1 if shuffled else None, shuffle_seed=1))
    x, y, lists = next(batches)
    assert y.numpy().ravel().tolist() == x.numpy().tolist()
    assert lists.to_ragged().to_list() == [{7: [4], 8: [5], 9: []}[i] for i in x.numpy().tolist()]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(batches)


def _elements(size):
    """Returns batches of `size` rows: their numbers, and as many lists."""
    numbers = tf.data.Dataset.range(ROWS).batch(size)
    return numbers.map(lambda i: {"i": i, "list": tf.RaggedTensor.from_row_lengths(tf.repeat(i, i % 3), i % 3)})


def _numbers(batches):
    """Returns the rows' numbers of each batch, and asserts that each row has its list."""
    numbers = []
    for batch in batches:
        numbers.append(batch["i"].numpy().tolist())
        assert batch["list"].to_list() == [[i] * (i % 3) for i in numbers[-1]]
    return numbers


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_rows_keep_their_order(size, drop_remainder):
    dataset = rebatch(8, drop_remainder)(_elements(size))
    rows = list(range(ROWS))
    assert _numbers(dataset) == [rows[:8], rows[8:16]] + [rows[16:]] * (not drop_remainder)
    assert dataset.element_spec["i"] == tf.TensorSpec([8 if drop_remainder else None], tf.int64)
    assert dataset.element_spec["list"].dtype == tf.int64


def test_a_size_may_be_a_tensor():
    dataset = RebatchDataset(_elements(5), None, tf.constant(20), shuffle_buffer_size=tf.constant(0))
    assert _numbers(dataset) == [list(range(20)), [20, 21, 22]]


def test_sizes_of_a_graph_may_be_tensors():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        sizes = tf.compat.v1.placeholder(tf.int32, [2])
        dataset = RebatchDataset(_elements(5), None, sizes[0], shuffle_buffer_size=sizes[1], shuffle_seed=1)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()["i"]
        session.run(iterator.initializer, {sizes: [12, 100]})
        drawn = [session.run(batch).tolist() for _ in range(2)]
    assert sorted(sum(drawn, [])) == list(range(ROWS)) != sum(drawn, [])
    assert list(map(len, drawn)) == [12, 11]


@pytest.mark.parametrize("buffer", [1, 6, 100])
def test_a_row_is_drawn_from_the_next_ones_only(buffer):
    drawn = _numbers(RebatchDataset(_elements(5), None, 4, shuffle_buffer_size=buffer, shuffle_seed=2))
    assert sorted(sum(drawn, [])) == list(range(ROWS)) != sum(drawn, [])
    for number, batch in enumerate(drawn):
        assert max(batch) < buffer + 4 * (number + 1)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_draws_do_not_depend_on_the_batches_that_come_in(size):
    def drawn(size):
        return _numbers(RebatchDataset(_elements(size), None, 4, False, 9, 3))

    assert drawn(size) == drawn(7)


@pytest.mark.parametrize(("reshuffle", "differ"), [(None, True), (True, True), (False, False)])
def test_each_pass_draws_again_unless_told_otherwise(reshuffle, differ):
    dataset = RebatchDataset(_elements(5), None, 4, False, 100, 3, reshuffle)
    assert (_numbers(dataset) != _numbers(dataset)) == differ


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0, wanted 1 or more"),
        ({"batch_size": 2, "shuffle_buffer_size": -1}, "buffer_size is -1, wanted 0 or more"),
    ],
    ids=str,
)
def test_sizes_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RebatchDataset(_elements(5), None, **arguments)


def test_elements_that_are_no_batches_are_refused():
    with pytest.raises(ValueError, match="a component of the dataset is a scalar"):
        tf.data.Dataset.range(10).apply(rebatch(2))


def test_sparse_columns_are_refused():
    dataset = tf.data.Dataset.range(4).batch(2).map(tf.sparse.from_dense)
    with pytest.raises(TypeError, match="rebatch: .*SparseTensor.* cannot be cut into rows; rebatch before parse"):
        RebatchDataset(dataset, None, 2)
