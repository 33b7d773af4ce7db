"""Fields of columns: their arguments, their defaults, and their types and shapes from files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep._src.data.fields import Field, name_in_file, resolve


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory):
    path = tmp_path_factory.mktemp("fields") / "a.parquet"
    columns = {
        "id": pa.array([1], pa.int32()),
        "List": pa.array([[1.0]], pa.list_(pa.float32())),
        "nested": pa.array([[["a"]]]),
        "pair": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        "twin": [1],
        "TWIN": [2],
        "odd": [{"x": 1}],
    }
    pq.write_table(pa.table(columns), path)
    return str(path)


def _described(fields):
    return [(f.name, f.dtype, f.ragged_rank, None if f.shape is None else f.shape.as_list()) for f in fields]


def test_a_field_has_types_and_shapes_of_tensorflow():
    field = Field("a", "int64", 1, (2, 3), default_value=4)
    assert _described([field]) == [("a", tf.int64, 1, [2, 3])]
    assert (field.default_value, field.incomplete) == (4, False)
    assert _described([Field("a", np.float32)]) == [("a", tf.float32, None, None)]


@pytest.mark.parametrize(
    "given", [{}, {"dtype": tf.int64, "ragged_rank": 0}, {"dtype": tf.int64, "shape": []}], ids=str
)
def test_a_field_is_incomplete_until_it_has_all_attributes(given):
    assert Field("a", **given).incomplete


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "field: name is '', wanted the name of a column"),
        ({"name": 3}, "field: name is 3, wanted the name of a column"),
        ({"name": "a", "ragged_rank": -1}, "field 'a': ragged_rank is -1, wanted 0 or more"),
        ({"name": "a", "shape": [None]}, r"field 'a': shape is \(None,\), wanted only known dimensions"),
        ({"name": "a", "shape": [2, 0]}, r"field 'a': shape is \(2, 0\), wanted only known dimensions of 1 or more"),
    ],
    ids=str,
)
def test_wrong_arguments_of_a_field_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Field(**arguments)


@pytest.mark.parametrize(
    ("dtype", "default"),
    [
        (tf.int64, 3),
        (tf.int8, -128),
        (tf.uint8, 255),
        (tf.uint64, 2**64 - 1),
        (tf.uint32, np.int64(7)),
        (tf.float32, 3),
        (tf.float64, 0.1),
        (tf.float16, np.float32(0.5)),
        (tf.bool, True),
    ],
    ids=str,
)
def test_a_default_is_given_to_the_reader_as_bytes_of_its_type(dtype, default):
    wanted = np.array(default, dtype.as_numpy_dtype).tobytes()
    assert Field("a", dtype, default_value=default).default_bytes() == wanted


@pytest.mark.parametrize(("default", "wanted"), [("é", "é".encode()), (b"\xff\0", b"\xff\0"), ("", b""), (None, b"")])
def test_a_default_of_a_string_column_is_its_text(default, wanted):
    assert Field("a", tf.string, default_value=default).default_bytes() == wanted


@pytest.mark.parametrize(
    ("dtype", "default"),
    [
        (tf.int64, 0.5),
        (tf.int64, "3"),
        (tf.int64, [3]),
        (tf.int64, 2**63),
        (tf.int8, 300),
        (tf.uint8, -1),
        (tf.bool, 1),
        (tf.float32, "nan"),
        (tf.string, 3),
        (tf.string, ["x"]),
    ],
    ids=str,
)
def test_a_default_that_is_no_value_of_the_type_is_refused(dtype, default):
    with pytest.raises(ValueError) as refused:
        Field("a", dtype, default_value=default).default_bytes()
    assert str(refused.value) == f"field 'a': default_value is {default!r}, wanted one {dtype.name}"


def test_absent_attributes_are_taken_from_the_file(path):
    assert _described(resolve(["nested", Field("id"), "pair", "List"], [path])) == [
        ("nested", tf.string, 2, []),
        ("id", tf.int32, 0, []),
        ("pair", tf.int64, 0, [2]),
        ("List", tf.float32, 1, []),
    ]
    assert _described(resolve("id", [path])) == _described(resolve(Field("id"), [path])) == [("id", tf.int32, 0, [])]


def test_all_readable_columns_are_the_default(path):
    assert [field.name for field in resolve(None, [path])] == ["id", "List", "nested", "pair", "twin", "TWIN"]


@pytest.mark.parametrize("ragged_rank", [None, 1])
def test_a_shape_takes_a_level_of_lists(path, ragged_rank):
    (field,) = resolve([Field("List", None, ragged_rank, [4])], [path])
    assert _described([field]) == [("List", tf.float32, 0, [4])]


def test_a_column_that_the_file_lacks_is_made_of_its_default(path):
    (field,) = resolve([Field("new", tf.int64, default_value=7)], [path])
    assert _described([field]) == [("new", tf.int64, 0, [])]
    assert field.default_value == 7


def test_names_are_found_whatever_their_case_where_this_is_asked_for(path):
    (field,) = resolve([Field("LIST", default_value=3)], [path], ignore_case=True)
    assert (field.name, field.default_value) == ("List", 3)
    # An exact name is taken even if others differ from it only in case.
    assert [field.name for field in resolve(["TWIN", "ID"], [path], ignore_case=True)] == ["TWIN", "id"]
    with pytest.raises(ValueError, match="field 'Twin' may be any of 'twin', 'TWIN'"):
        resolve(["Twin"], [path], ignore_case=True)
    assert [name_in_file(name, [path]) for name in ("LIST", "id", "none")] == ["List", "id", "none"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["none"], "has no column 'none': it has id, List, nested, pair, twin, TWIN, odd$"),
        (["ID"], "has no column 'ID'"),
        ([Field("none", default_value=3)], "a field with a default_value that no file has needs a dtype"),
        (["odd"], "a.parquet' column 'odd': type struct<x: int64> cannot be read as a tensor"),
    ],
    ids=["absent", "other case", "default without a dtype", "unreadable"],
)
def test_a_column_that_cannot_be_read_is_named_with_the_file(path, fields, message):
    with pytest.raises(tf.errors.OpError, match=message):
        resolve(fields, [path])


def test_fields_without_a_file_need_a_dtype_and_a_ragged_rank():
    given = [Field("a", tf.int64, 1), Field("b", tf.string, 0, [2])]
    assert _described(resolve(given, None)) == [("a", tf.int64, 1, []), ("b", tf.string, 0, [2])]
    with pytest.raises(ValueError, match="fields must be given"):
        resolve(None, None)
    with pytest.raises(ValueError, match="field 'a' needs a dtype and a ragged_rank"):
        resolve([Field("a", tf.int64)], None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [([], "fields is empty, wanted at least one, or None"), (["a", Field("a", tf.int64, 0)], "'a' is given twice")],
    ids=["empty", "twice"],
)
def test_wrong_lists_of_fields_are_refused(path, fields, message):
    with pytest.raises(ValueError, match=message):
        resolve(fields, [path])
