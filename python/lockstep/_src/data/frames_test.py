"""Columns in HybridBackend's form and their conversions, compared with NumPy. Columns of files: tabular_test.py."""

import numpy as np
import pytest
import tensorflow as tf

from lockstep._src.data.fields import Field
from lockstep._src.data.frames import (
    DataFrame,
    Value,
    deduplicate,
    parse,
    populate_defaults,
    unbatch_and_to_sparse,
)

COLUMNS = {
    "lists": [[1, 2], [], [3]],
    "nested": [[[1], [], [2, 3]], [], [[4]]],
    "texts": [["a"], ["b", "c"], []],
    "empty": [[], [], []],
    "vectors": [[[1, 2]], [], [[3, 4], [5, 6]]],
}


def _ragged(name):
    if name == "vectors":
        return tf.ragged.constant(COLUMNS[name], ragged_rank=1, inner_shape=(2,))
    return tf.ragged.constant(COLUMNS[name], dtype=tf.string if name == "texts" else tf.int32)


def _value(name):
    ragged = _ragged(name)
    return Value(ragged.flat_values, ragged.nested_row_splits)


def _arrays(value):
    return Value(value.values.numpy(), [splits.numpy() for splits in value.nested_row_splits])


def _as_text(rows):
    return [_as_text(row) for row in rows] if isinstance(rows, list) else rows.decode()


def _assert_sparse(got, wanted):
    assert isinstance(got, tf.SparseTensor)
    for part in ("indices", "values", "dense_shape"):
        np.testing.assert_array_equal(getattr(got, part), getattr(wanted, part))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_has_the_rows_of_its_lists(name):
    value, ragged = _value(name), _ragged(name)
    rows = _arrays(value).to_list()
    assert (_as_text(rows) if name == "texts" else rows) == COLUMNS[name]
    assert value.to_ragged().to_list() == ragged.to_list()
    np.testing.assert_array_equal(value.to_tensor(), ragged.to_tensor())
    _assert_sparse(value.to_sparse(), ragged.to_sparse())


@pytest.mark.parametrize("splits", [None, ()])
def test_a_value_without_lists_is_its_tensor(splits):
    column = tf.constant([[1, 2], [3, 4]])
    value = Value(column, splits)
    assert value.nested_row_splits == ()
    assert value.to_ragged() is value.to_tensor() is value.to_sparse() is column
    assert Value(column.numpy()).to_list() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("make", [_value, _ragged], ids=["value", "ragged"])
@pytest.mark.parametrize("name", COLUMNS)
def test_parse_makes_sparse_or_padded_columns(name, make):
    _assert_sparse(DataFrame.parse(make(name)), _ragged(name).to_sparse())
    _assert_sparse(DataFrame.to_sparse(make(name)), _ragged(name).to_sparse())
    np.testing.assert_array_equal(DataFrame.parse(make(name), pad=True), _ragged(name).to_tensor())


@pytest.mark.parametrize(
    ("pad", "shape"),
    [([4], [3, 4]), ([None, 4], [3, 4]), ([-1, 4], [3, 4]), ([9, 4], [3, 4]), ([None], [3, 2]), ((-1,), [3, 2])],
    ids=str,
)
def test_padding_to_a_shape_adds_no_rows(pad, shape):
    wanted = np.zeros(shape, np.int32)
    wanted[:, :2] = [[1, 2], [0, 0], [3, 0]]
    np.testing.assert_array_equal(DataFrame.parse(_value("lists"), pad), wanted)


def test_padding_is_by_column_where_a_dict_is_given():
    features = {name: _value(name) for name in ("lists", "nested", "texts")}
    parsed = DataFrame.parse(features, {"lists": True, "nested": [3, 4]})
    assert list(parsed) == list(features)
    assert (parsed["lists"].shape, parsed["nested"].shape) == ([3, 2], [3, 3, 4])
    assert isinstance(parsed["texts"], tf.SparseTensor)


def test_parse_keeps_structures_and_plain_columns():
    plain, sparse = tf.constant([1, 2, 3]), tf.sparse.eye(3)
    first, second = DataFrame.parse((plain, [sparse, _value("lists")]))
    assert first is plain and second[0] is sparse
    _assert_sparse(second[1], _ragged("lists").to_sparse())


@pytest.mark.parametrize(
    ("features", "pad", "message"),
    [
        ("x", False, "parse: 'x' is not a column; wanted a tensor, a ragged tensor or a DataFrame.Value"),
        ({"a": 3}, False, "parse: 3 is not a column"),
        ({"a": tf.constant([1])}, {"b": True}, r"parse: pad has \['b'\], wanted names of columns: a"),
        (_value("lists"), [1, 2, 3], r"pad is \[1, 2, 3\], wanted 2 dimensions, or 1 without rows"),
    ],
    ids=["text", "number", "pad of no column", "pad of other rank"],
)
def test_wrong_columns_and_pads_are_refused(features, pad, message):
    with pytest.raises(ValueError, match=message):
        DataFrame.parse(features, pad)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_batch_of_one_row_becomes_the_row(name):
    for row in range(3):
        wanted = _ragged(name)[row]
        dense = wanted.to_tensor() if isinstance(wanted, tf.RaggedTensor) else wanted
        ragged = _ragged(name)[row : row + 1]
        got = DataFrame.unbatch_and_to_sparse({"x": Value(ragged.flat_values, ragged.nested_row_splits)})["x"]
        np.testing.assert_array_equal(got.dense_shape, tf.shape(dense))
        np.testing.assert_array_equal(tf.sparse.to_dense(got), dense)
        assert got.values.shape[0] == len(ragged.flat_values.numpy().ravel())


def test_other_columns_of_a_batch_of_one_row_stay():
    assert DataFrame.unbatch_and_to_sparse(tf.constant([7])).numpy().tolist() == [7]


SPARSE_DEFAULT = tf.SparseTensor([[1]], [5], [3])
DEFAULTS = [Field("b"), Field("one", tf.int64, default_value=4), Field("pair", tf.float32, default_value=[1, 2])]
DEFAULTS += [Field("sparse", tf.int32, default_value=SPARSE_DEFAULT), Field("none", tf.int64)]


@pytest.mark.parametrize(
    "batch",
    [tf.constant([1, 2, 3]), _value("nested"), _ragged("lists"), tf.sparse.eye(3)],
    ids=["tensor", "value", "ragged", "sparse"],
)
def test_defaults_have_the_rows_of_the_batch_and_the_order_of_the_fields(batch):
    filled = DataFrame.populate_defaults({"b": batch, "other": batch}, iter(DEFAULTS))
    assert list(filled) == ["other", "b", "one", "pair", "sparse"]
    assert filled["b"] is batch
    np.testing.assert_array_equal(filled["one"], [4] * 3)
    assert (filled["one"].dtype, filled["pair"].dtype) == (tf.int64, tf.float32)
    np.testing.assert_array_equal(filled["pair"], [[1, 2]] * 3)
    np.testing.assert_array_equal(tf.sparse.to_dense(filled["sparse"]), [[0, 5, 0]] * 3)


@pytest.mark.parametrize("rows", [2, tf.constant(2), tf.constant(2, tf.int64)], ids=["int", "int32", "int64"])
def test_defaults_alone_have_the_rows_that_are_given(rows):
    filled = DataFrame.populate_defaults({}, DEFAULTS, rows)
    np.testing.assert_array_equal(filled["one"], [4] * 2)
    np.testing.assert_array_equal(tf.sparse.to_dense(filled["sparse"]), [[0, 5, 0]] * 2)


@pytest.mark.parametrize(
    ("features", "message"),
    [([1], "populate_defaults: features are list, wanted a dict"), ({}, "got no features and no batch_size")],
    ids=["list", "nothing"],
)
def test_defaults_need_columns_or_a_number_of_rows(features, message):
    with pytest.raises(ValueError, match=message):
        DataFrame.populate_defaults(features, DEFAULTS)


def _dataset(**columns):
    """Returns a dataset of one batch with a `Value` for each column of lists."""
    element = {name: tf.ragged.constant(column) for name, column in columns.items()}
    dataset = tf.data.Dataset.from_tensors(element)
    return dataset.map(lambda batch: {n: Value(c.flat_values, c.nested_row_splits) for n, c in batch.items()})


@pytest.mark.parametrize("fields", [None, iter([Field("key"), Field("text"), Field("nested")])], ids=["own", "given"])
def test_duplicates_are_restored_in_every_dataset_to_which_it_is_applied(fields):
    texts, nested = [["a", "b"], [], ["c"]], [[[1], [2, 3]], [], [[]]]
    key = [[1, 0, 1], [], [0, 0]]
    transformation = deduplicate(["key"], [["text", "nested"]], fields)
    for _ in range(2):
        (batch,) = _dataset(text=texts, key=key, nested=nested).apply(transformation)
        assert sorted(batch) == ["nested", "text"]
        assert [text.decode() for text in batch["text"].numpy()] == ["b", "a", "b", "c", "c"]
        assert batch["nested"].to_ragged().to_list() == [[2, 3], [1], [2, 3], [], []]


@pytest.mark.parametrize("key", [[[2]], [[-1]]], ids=["after", "before"])
def test_an_index_outside_of_its_block_is_an_error(key):
    dataset = _dataset(value=[[1, 2]], key=key).apply(deduplicate(["key"], [["value"]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="field .*value.*: an index lies outside of its block"):
        list(dataset)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((["key"], []), "deduplicate: 1 index columns and 0 lists of value columns, wanted the same number of both"),
        ((["z"], [["value"]]), "deduplicate: field 'z' does not exist; there are key, plain, value"),
        ((["key"], [["z"]]), "deduplicate: field 'z' does not exist"),
        ((["key"], [["plain"]]), "deduplicate: field 'plain' must hold a list for each block"),
    ],
    ids=["lengths", "index", "value", "plain"],
)
def test_wrong_names_of_duplicates_are_refused(names, message):
    dataset = _dataset(value=[[1, 2]], key=[[0]]).map(lambda batch: {**batch, "plain": tf.constant([1])})
    with pytest.raises(ValueError, match=message):
        dataset.apply(deduplicate(*names))


@pytest.mark.parametrize("calls", [None, 2])
def test_transformations_convert_each_element(calls):
    dataset = _dataset(lists=COLUMNS["lists"])
    (padded,) = dataset.apply(parse(calls, pad=True))
    np.testing.assert_array_equal(padded["lists"], _ragged("lists").to_tensor())
    (filled,) = dataset.apply(populate_defaults([Field("one", tf.int64, default_value=4)], None, calls))
    np.testing.assert_array_equal(filled["one"], [4] * 3)
    (row,) = _dataset(lists=[[5, 6]]).apply(unbatch_and_to_sparse(calls))
    np.testing.assert_array_equal(tf.sparse.to_dense(row["lists"]), [5, 6])
