"""Odd, valid columns: of type null, of odd names, of every type of Arrow. They have no effect unless they are read."""

import contextlib
import datetime
import decimal
import itertools

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pyarrow import orc

from lockstep.data import DataFrame, ParquetDataset

ROWS = 3


def _read(files, fields=None, **options):
    rows = {}
    for batch in ParquetDataset(files, 2, fields, 1, 0, **options):
        for name, value in batch.items():
            rows[name] = rows.get(name, []) + (
                value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
            )
    return rows


def _write(path, columns, schema=None):
    table = pa.table(columns, schema=schema) if isinstance(columns, dict) else pa.Table.from_arrays(*columns)
    (orc if str(path).endswith(".orc") else pq).write_table(table, path)
    return str(path)


_NULLS = {
    "plain": (pa.nulls(3), {"dtype": tf.string, "ragged_rank": 0, "default_value": ""}, [b""] * 3),
    "a number": (pa.nulls(3), {"dtype": tf.int32, "default_value": 7}, [7] * 3),
    "lists": (pa.nulls(3), {"dtype": tf.int64, "ragged_rank": 1, "default_value": 7}, [[]] * 3),
    "lists of lists": (pa.nulls(3), {"dtype": tf.string, "ragged_rank": 2, "default_value": "x"}, [[]] * 3),
    "a shape": (pa.nulls(3), {"dtype": tf.float32, "shape": [2], "default_value": 0.5}, [[0.5, 0.5]] * 3),
    "lists of nulls": (
        pa.array([[None], [], [None, None]], pa.list_(pa.null())),
        {"dtype": tf.int64, "default_value": 7},
        [[7], [], [7, 7]],
    ),
    "lists of nulls as lists": (
        pa.array([[None], None, [None, None]], pa.list_(pa.null())),
        {"dtype": tf.int64, "ragged_rank": 2, "default_value": 7},
        [[[]], [], [[], []]],
    ),
    "lists of nulls in a shape": (
        pa.array([[[None]], [], [[None], [None]]], pa.list_(pa.list_(pa.null()))),
        {"dtype": tf.int64, "ragged_rank": 1, "shape": [1], "default_value": 7},
        [[[7]], [], [[7], [7]]],
    ),
}


# Promise (input.md): columns of type null are the default, in any order of files.
@pytest.mark.parametrize("kind", _NULLS)
def test_a_column_of_type_null_reads_as_the_default(tmp_path, kind):
    column, about, wanted = _NULLS[kind]
    path = _write(tmp_path / "a.parquet", {"id": [1, 2, 3], "x": column})
    assert _read(path, ["id", DataFrame.Field("x", **about)]) == {"id": [1, 2, 3], "x": wanted}
    assert _read(path, [DataFrame.Field("x", **about), "id"], filters=[("id", ">", 1)])["x"] == wanted[1:]


# Promise (input.md): columns of type null are the default, in any order of files.
def test_files_with_and_without_values_are_read_in_any_order(tmp_path):
    empty = _write(tmp_path / "a.parquet", {"id": [1, 2], "city": pa.nulls(2)})
    full = _write(tmp_path / "b.parquet", {"id": [3, 4], "city": ["x", None]})
    for complete in ({"ragged_rank": 0}, {}):
        field = DataFrame.Field("city", tf.string, default_value="", **complete)
        assert _read([empty, full], [field])["city"] == [b"", b"", b"x", b""]
        assert _read([full, empty], [field])["city"] == [b"x", b"", b"", b""]


def test_a_filter_sees_nulls_in_a_column_of_type_null(tmp_path):
    files = [_write(tmp_path / "a.parquet", {"id": [1, 2], "city": pa.nulls(2)})]
    files.append(_write(tmp_path / "b.parquet", {"id": [3, 4, 5], "city": ["x", None, "y"]}))
    # As pyarrow reads a table of both files.
    table = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    pq.write_table(table, tmp_path / "both.parquet")
    for op, value in (("=", "x"), ("!=", "x"), ("in", ["x"]), ("in", ["x", None]), ("not in", ["x"])):
        wanted = pq.read_table(tmp_path / "both.parquet", filters=[("city", op, value)])["id"].to_pylist()
        assert _read(files, ["id"], filters=[("city", op, value)]).get("id", []) == wanted, (op, value)


def test_nulls_without_a_type_or_a_default_are_an_error_that_says_what_to_do(tmp_path):
    path = _write(tmp_path / "a.parquet", {"id": [1, 2], "city": pa.nulls(2)})
    assert _read(path) == {"id": [1, 2]}
    with pytest.raises(
        tf.errors.UnimplementedError, match="column 'city': all its values are null.*a Field that has a"
    ):
        ParquetDataset(path, 2, ["city"])
    with pytest.raises(
        tf.errors.DataLossError, match="column 'city': row 0 is null, and the field has no default_value"
    ):
        _read(path, [DataFrame.Field("city", tf.string)])
    assert _read(path, ["id", DataFrame.Field("city", tf.string)], skip_corrupted_data=True) == {}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'y' is list<null>, wanted int64"):
        _read(
            _write(tmp_path / "b.parquet", {"y": pa.array([[None]], pa.list_(pa.null()))}),
            [DataFrame.Field("y", tf.int64, ragged_rank=0, shape=[], default_value=0)],
        )


# Promise (hybridbackend.md): it has no effect if it is not selected (HybridBackend, a crash: one odd column makes a
# file unreadable).
@pytest.mark.parametrize(
    "names", [["", "user"], ["user", ""], ["odd", "user", "odd"], ["a.b", "user", "a"], ["us\ner", "user"]]
)
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_columns_of_odd_names_have_no_effect(tmp_path, names, kind):
    columns = [pa.array([[5, 6, 7], [0, 0, 0]][name != "user"]) for name in names]
    path = str(tmp_path / f"a.{kind}")
    try:
        _write(path, (columns, names))
    except (pa.ArrowException, ValueError):
        pytest.xfail("pyarrow does not write it")
    assert _read(path, ["user"]) == {"user": [5, 6, 7]}
    assert _read(path)["user"] == [5, 6, 7]


def test_a_column_is_not_mistaken_for_a_part_of_another(tmp_path):
    inner = pa.array([{"b": i} for i in range(3)])
    for kind, order in itertools.product(("parquet", "orc"), (("a", "a.b"), ("a.b", "a"))):
        columns = {"a": inner, "a.b": pa.array([5, 6, 7])}
        path = _write(tmp_path / f"a.{kind}", {name: columns[name] for name in order})
        assert _read(path, ["a.b"]) == {"a.b": [5, 6, 7]}


_TIME = datetime.datetime(2020, 1, 2, 3, 4, 5)
_TYPES = [
    (pa.null(), [None] * 3), (pa.bool_(), [True, None, False]),
    *((kind(), [1, None, 3]) for kind in (
        pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64,
        pa.float16, pa.float32, pa.float64, pa.date32, pa.date64)),
    *((kind(unit), [1, None, 3]) for kind, units in (
        (pa.time32, ("s", "ms")), (pa.time64, ("us", "ns")), (pa.duration, ("s", "ms", "us", "ns")),
        (pa.timestamp, ("s", "ms", "us", "ns"))) for unit in units),
    (pa.timestamp("us", "UTC"), [_TIME, None, _TIME]), (pa.timestamp("ns", "Asia/Tokyo"), [_TIME, None, _TIME]),
    *((kind(), ["a", None, "c"]) for kind in (pa.string, pa.large_string, pa.string_view)),
    *((kind(), [b"a", None, b"\xff"]) for kind in (pa.binary, pa.large_binary, pa.binary_view)),
    (pa.binary(2), [b"ab", None, b"cd"]),
    *((kind(5, 2), [decimal.Decimal("1.25"), None, None])
      for kind in (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)),
    *((kind(pa.int32()), [[1], None, []]) for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)),
    (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]]), (pa.list_(pa.null()), [[None], None, []]),
    (pa.list_(pa.list_(pa.string())), [[["a"]], None, []]),
    (pa.list_(pa.struct([("x", pa.int8())])), [[{"x": 1}], None, []]),
    (pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]), [{"x": 1}, None, {"y": ["a"]}]),
    (pa.struct([("z", pa.struct([("x", pa.null())]))]), [{"z": None}] * 3),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]), (pa.dictionary(pa.int32(), pa.int64()), [1, None, 1]),
    (pa.run_end_encoded(pa.int32(), pa.int64()), [1, 1, None]), (pa.month_day_nano_interval(), [None] * 3),
    (pa.dense_union([pa.field("x", pa.int64()), pa.field("y", pa.string())]), None),
    (pa.bool8(), [True, None, False]), (pa.uuid(), [b"0" * 16, None, b"1" * 16]), (pa.json_(), ["{}", None, "1"]),
    (pa.opaque(pa.binary(), "thing", "vendor"), [b"x", None, b""]),
]  # fmt: skip


def _array(kind, values):
    if pa.types.is_union(kind):
        ids, offsets = pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32())
        return pa.UnionArray.from_dense(ids, offsets, [pa.array([1, 2]), pa.array(["a"])], ["x", "y"])
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(pa.array(values, kind.value_type), kind.run_end_type)
    return pa.array(values, kind)


# Promise (hybridbackend.md): it has no effect if it is not selected (HybridBackend, a crash: one odd column makes a
# file unreadable).
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_column_that_is_not_selected_has_no_effect_whatever_its_type(tmp_path, kind):
    written = []
    for number, (odd, values) in enumerate(_TYPES):
        for place in range(3):
            columns = {"id": pa.array([5, 6, 7]), "tags": pa.array([["a"], [], ["b", "c"]])}
            names = list(columns)
            names.insert(place, "odd")
            path = tmp_path / f"{number}_{place}.{kind}"
            with contextlib.suppress(pa.ArrowException):  # neither format has all types of Arrow
                path = _write(path, {name: columns.get(name, _array(odd, values)) for name in names})
                written.append(str(odd))
                read = _read(path, ["tags", "id"], filters=[("id", "!=", 6)])
                assert read == {"tags": [[b"a"], [b"b", b"c"]], "id": [5, 7]}, odd
    assert len(set(written)) > (35 if kind == "parquet" else 15)


def _units():
    times = [pa.timestamp(unit) for unit in ("ms", "us", "ns")]
    return [pa.int64(), *times, pa.duration("us"), pa.duration("ns"), pa.time64("us"), pa.time64("ns")]


# Promise (input.md): files with different units of times are an error.
def test_files_with_different_units_are_an_error_that_names_both(tmp_path):
    paths = {
        str(one): _write(tmp_path / f"{i}.parquet", {"id": [1], "t": pa.array([1], one)})
        for i, one in enumerate(_units())
    }
    for (first, a), (second, b) in itertools.permutations(paths.items(), 2):
        with pytest.raises(tf.errors.InvalidArgumentError) as refused:
            _read([a, b], [DataFrame.Field("t", tf.int64, 0, [])])
        said = str(refused.value)
        assert f"file '{b}' column 't' is {second}, wanted {first} as in file '{a}'" in said
        assert _read([a, b], ["id"]) == {"id": [1, 1]}


# Promise (input.md): files with different units of times are an error.
def test_times_of_zones_dictionaries_and_defaults_of_one_unit_are_read(tmp_path):
    ticks = pa.array([1], pa.timestamp("us"))
    columns = [ticks, ticks.cast(pa.timestamp("us", "UTC")), pa.nulls(1), ticks.cast(pa.timestamp("us", "Asia/Tokyo"))]
    files = [_write(tmp_path / f"{i}.parquet", {"t": column}) for i, column in enumerate(columns)]
    files.append(_write(tmp_path / "9.parquet", {"other": [1]}))
    assert _read(files, [DataFrame.Field("t", tf.int64, default_value=9)]) == {"t": [1, 1, 9, 1, 9]}
    lists = [
        _write(tmp_path / f"l{u}.parquet", {"t": pa.array([[1]], pa.list_(pa.timestamp(u)))}) for u in ("us", "ns")
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is timestamp\[ns\], wanted timestamp\[us\] as in"):
        _read(lists, ["t"])
    mixed = [_write(tmp_path / "x.orc", {"t": ticks.cast(pa.timestamp("ns"))}), files[0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is timestamp\[us\], wanted timestamp\[ns\] as in"):
        _read(mixed, ["t"])
