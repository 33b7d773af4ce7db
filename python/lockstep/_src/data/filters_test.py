"""Filters, compared with pyarrow's own."""

import datetime
import math

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import lockstep.data
from lockstep._src.data import tabular

Field = lockstep.data.DataFrame.Field
ROWS, GROUP_ROWS = 600, 50
_DAY, _NOON = datetime.date(2024, 1, 31), datetime.datetime(2024, 1, 31, 12, 30, 15, 250)


def _table() -> pa.Table:
    """Returns columns with and without order, nulls and NaN; `id` counts rows and `group` counts row groups."""
    random = np.random.default_rng(5)

    def column(values, arrow_type, nulls=0.2):
        return pa.array(values, arrow_type, mask=random.random(ROWS) < nulls)

    ids = np.arange(ROWS)
    days = [_DAY + datetime.timedelta(days=int(i)) for i in ids // 10 - 30]
    return pa.table(
        {
            "id": ids,
            "group": pa.array(ids // GROUP_ROWS, pa.int16()),
            "i": column(random.integers(-5, 5, ROWS), pa.int32()),
            "u": pa.array(random.integers(2**63, 2**64, ROWS, dtype=np.uint64)),
            "f": column(np.where(random.random(ROWS) < 0.1, np.nan, random.normal(size=ROWS)), pa.float64()),
            "nan": pa.array(np.where(ids % 7 == 0, np.nan, 1.0)),
            "s": column(np.array(["a", "b", "c", "é"])[random.integers(0, 4, ROWS)], pa.string()),
            "y": column([bytes([i]) for i in random.integers(0, 256, ROWS)], pa.binary()),
            "b": column(random.integers(0, 2, ROWS) > 0, pa.bool_()),
            "day": column(days, pa.date32()),
            "time": pa.array([datetime.datetime.combine(day, _NOON.time()) for day in days], pa.timestamp("us")),
            "utc": pa.array([datetime.datetime.combine(day, _NOON.time()) for day in days], pa.timestamp("ms", "UTC")),
            "kind": pa.array(np.array(["x", "y", "z"])[ids // 200]).dictionary_encode(),
            "none": pa.nulls(ROWS, pa.int64()),
            "list": [[int(i)] * int(i % 4) for i in ids],
            "text": [f"row {i}" for i in ids],
        }
    )


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory):
    path = tmp_path_factory.mktemp("filters") / "a.parquet"
    pq.write_table(_table(), path, row_group_size=GROUP_ROWS)
    return str(path)


def _ids(dataset) -> list[int]:
    return [i for batch in dataset for i in batch["id"].numpy().tolist()]


def _expected(path, filters) -> list[int]:
    return pq.read_table(path, columns=["id"], filters=filters)["id"].to_pylist()


_UTC = datetime.timezone.utc
_FILTERS = [
    *[[("i", op, 1)] for op in ("=", "==", "!=", "<", "<=", ">", ">=")],
    [("i", "in", [1, 2, -3])],
    [("i", "in", (1, None))],
    [("i", "not in", {1, 2})],
    [("i", "not in", [None])],
    [("i", ">", 0.5)],
    [("i", "in", [1, 2.0])],
    [("f", "<", 0)],
    [("f", "!=", 0.5)],
    [("f", ">", math.inf)],
    [("f", "==", math.nan)],
    [("nan", ">=", 1.0)],
    [("s", ">", "b")],
    [("s", "in", ["a", "é"]), ("i", ">", -2)],
    [("y", "<", b"\x80")],
    [("b", "==", True)],
    [("day", ">=", _DAY)],
    [("time", "<", _NOON)],
    [("utc", ">", _NOON.replace(tzinfo=_UTC))],
    [("kind", "==", "y")],
    [("none", "==", 1)],
    [("none", "not in", [1])],
    [("group", ">", 4), ("group", "<=", 9), ("id", "!=", 333)],
    [[("group", "==", 2), ("i", ">", 0)], [("group", "==", 11)], [("s", "==", "c"), ("f", ">", 0)]],
    [("id", "<", 0)],
    [("id", ">=", 0)],
    [("id", "in", [])],
    [("i", ">", np.int8(2)), ("f", "<", np.float32(0.25)), ("s", "==", np.str_("a"))],
]


# Promise (hybridbackend.md): pyarrow's `filters`, pushed down to row groups' statistics (HybridBackend: rows cannot be
# filtered during the read).
@pytest.mark.parametrize("filters", _FILTERS, ids=str)
def test_the_rows_are_those_that_pyarrow_keeps(path, filters):
    dataset = lockstep.data.ParquetDataset(path, 32, ["id"], filters=filters)
    assert _ids(dataset) == _expected(path, filters)


# Promise (hybridbackend.md): pyarrow's `filters`, pushed down to row groups' statistics (HybridBackend: rows cannot be
# filtered during the read).
@pytest.mark.parametrize("group_rows", [1, 100])
def test_numbers_near_zero_are_compared_exactly(tmp_path, group_rows):
    """TensorFlow's threads, where datasets run, treat denormal numbers as zero."""
    least = {np.float64: 5e-324, np.float32: 1e-45}
    columns = {}
    for dtype, value in least.items():
        near = np.array([value, 2 * value, 100 * value], dtype)
        columns[np.dtype(dtype).name] = np.concatenate([-near, near, np.array([0.0, -0.0, np.inf, np.nan, 1.0], dtype)])
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": np.arange(11), **columns}), path, row_group_size=group_rows)
    for dtype, value in least.items():
        column = np.dtype(dtype).name
        for op in ("==", "!=", "<", "<=", ">", ">=", "in", "not in"):
            for given in (0.0, float(dtype(value)), -float(dtype(2 * value))):
                filters = [(column, op, [given, 1.0] if "in" in op else given)]
                dataset = lockstep.data.ParquetDataset(path, 4, ["id"], filters=filters)
                assert _ids(dataset) == _expected(path, filters), filters


def test_values_that_pyarrow_does_not_take(path):
    table = pq.read_table(path)
    unsigned = np.array(table["u"], np.uint64)

    def read(*terms):
        return _ids(lockstep.data.ParquetDataset(path, 32, ["id"], filters=list(terms)))

    assert read(("u", ">", 2**63 + 2**62)) == np.flatnonzero(unsigned > np.uint64(2**63 + 2**62)).tolist()
    assert read(("u", ">", 5)) == list(range(ROWS))
    assert read(("u", "in", [3, int(unsigned[7])])) == [7]
    day = _expected(path, [("day", "==", _DAY)])
    assert read(("day", "==", np.datetime64("2024-01-31"))) == day
    assert read(("time", "<=", np.datetime64(_NOON, "ns")), ("time", ">=", np.datetime64(_NOON, "us"))) == [
        i for i, time in enumerate(table["time"].to_pylist()) if time == _NOON
    ]


def test_a_comparison_keeps_nan_whatever_the_statistics_say(path):
    # The writer's statistics ignore NaN. They say that all values are 1, but this must not exclude the row group.
    ids = _ids(lockstep.data.ParquetDataset(path, 32, ["id"], filters=[("nan", "!=", 1.0)]))
    assert ids == list(range(0, ROWS, 7))


@pytest.mark.parametrize("seed", range(4))
def test_full_batches_of_all_columns_whatever_the_borders(tmp_path, seed):
    random = np.random.default_rng(seed)
    table = _table().select(["id", "group", "i", "list", "text", "kind"])
    for i in range(3):
        part = table.slice(200 * i, 200)
        pq.write_table(part, tmp_path / f"{i}.parquet", row_group_size=int(random.integers(20, 120)))
    batch_size, workers = int(random.integers(1, 40)), int(random.integers(1, 4))
    filters = [[("i", ">", 1)], [("group", "in", [1, 5, 6])]]
    rows = []
    for worker in range(workers):
        dataset = lockstep.data.ParquetDataset(
            str(tmp_path),
            batch_size,
            ["id", "list", "text", "kind"],
            workers,
            worker,
            filters=filters,
            partition_by=["rows", "row_groups"][seed % 2],
            num_threads=1 + seed % 3,
            _piece_rows=int(random.integers(1, 100)),
        )
        assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        batches = list(dataset)
        assert all(len(batch["id"]) == batch_size for batch in batches[:-1])
        for batch in batches:
            columns = (batch["id"].numpy(), batch["list"].to_list(), batch["text"].numpy(), batch["kind"].numpy())
            rows += zip(*columns, strict=True)
    expected = pq.read_table(tmp_path, filters=filters).to_pylist()
    rows.sort(key=lambda row: row[0])
    assert [(int(i), values, text.decode(), kind.decode()) for i, values, text, kind in rows] == [
        (row["id"], row["list"], row["text"], row["kind"]) for row in expected
    ]


# Promise (hybridbackend.md): pyarrow's `filters`, pushed down to row groups' statistics (HybridBackend: rows cannot be
# filtered during the read).
def test_row_groups_that_statistics_exclude_are_not_read(tmp_path, damage):
    table = _table().select(["id", "group", "s"])
    options = {"row_group_size": GROUP_ROWS, "compression": "none"}
    pq.write_table(table, tmp_path / "a.parquet", **options)
    path = damage(tmp_path / "a.parquet", [0, 1, 2, 5, 11])
    with pytest.raises(tf.errors.DataLossError):
        _ids(lockstep.data.ParquetDataset(path, 32, ["id"]))
    filters = [[("group", ">", 2), ("id", "<", 250)], [("group", "in", [7, 8])]]
    for workers in (1, 2):
        shares = [
            _ids(lockstep.data.ParquetDataset(path, 32, ["id"], workers, worker, filters=filters))
            for worker in range(workers)
        ]
        assert [len(share) for share in shares] == [200 // workers] * workers  # excluded rows count for no share
        assert sum(shares, []) == [*range(150, 250), *range(350, 450)]
    # Without statistics, no row group can be excluded.
    pq.write_table(table, tmp_path / "b.parquet", write_statistics=False, **options)
    path = damage(tmp_path / "b.parquet", [0])
    with pytest.raises(tf.errors.DataLossError, match="b.parquet"):
        _ids(lockstep.data.ParquetDataset(path, 32, ["id"], filters=filters))


@pytest.mark.parametrize("taken", [0, 1, 9, None], ids=["none", "one", "nine", "all"])
def test_the_position_is_saved_and_restored(path, tmp_path, taken):
    filters = [[("i", ">", 2)], [("group", "==", 4)]]

    def make(filters):
        return lockstep.data.ParquetDataset(path, 7, ["id"], filters=filters, _piece_rows=21)

    expected = [batch["id"].numpy().tolist() for batch in make(filters)]
    taken = len(expected) if taken is None else taken
    iterator = iter(make(filters))
    for _ in range(taken):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "position"))
    other = iter(make(filters))
    tf.train.Checkpoint(iterator=other).restore(saved)
    assert [batch["id"].numpy().tolist() for batch in other] == expected[taken:]
    other = iter(make([("i", ">", 2)]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="other filters"):
        tf.train.Checkpoint(iterator=other).restore(saved)


# Promise (hybridbackend.md): the field's default, a filter, or `skip_corrupted_data` (HybridBackend: a null in a row is
# always an error).
def test_nulls_are_compared_as_nulls_and_excluded_rows_need_no_default(path):
    def read(filters, **default):
        fields = ["id", Field("i", **default)]
        return _ids(lockstep.data.ParquetDataset(path, 32, fields, filters=filters))

    with pytest.raises(tf.errors.DataLossError, match="column 'i': row"):
        read(None)
    assert read([("i", "<", 0)]) == _expected(path, [("i", "<", 0)])
    assert read([("i", "not in", [None])]) == _expected(path, [("i", "not in", [None])])
    # Filters compare the null, not the default that replaces it.
    assert read([("i", "==", 1)], default_value=1) == _expected(path, [("i", "==", 1)])


def test_an_error_behind_a_filter_names_the_row_in_the_file(path):
    with pytest.raises(tf.errors.DataLossError) as error:
        _ids(lockstep.data.ParquetDataset(path, 32, ["id", "s"], filters=[("id", ">=", 70)]))
    row = 70 + pq.read_table(path)["s"].to_pylist()[70:].index(None)
    assert f"row {row} is null" in error.value.message


def test_a_column_that_a_file_lacks_is_null_where_its_field_has_a_default(tmp_path):
    pq.write_table(pa.table({"id": [0, 1], "x": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2, 3]}), tmp_path / "b.parquet")
    with_default = ["id", Field("x", tf.int64, 0, (), 1)]

    def read(filters, fields=with_default):
        return _ids(lockstep.data.ParquetDataset(str(tmp_path), 4, fields, filters=filters))

    assert read([("x", "==", 1)]) == [0]
    assert read([("x", "not in", [1])]) == [1, 2, 3]
    assert read([("x", "in", [None, 2])]) == [1, 2, 3]
    with pytest.raises(tf.errors.NotFoundError, match=r"b.parquet.*filters.*'x'.*no such column: the file has id"):
        read([("x", "==", 1)], ["id"])


def test_tables_orc_files_and_shuffles_take_filters(path, tmp_path):
    filters = [("i", ">", 1), ("kind", "==", "y")]
    expected = _expected(path, filters)
    make = tabular.TabularDataset.from_parquet
    assert [int(row["id"]) for row in make(path, ["id"], filters=filters)] == expected
    shuffled = _ids(make(path, ["id"], filters=filters).shuffle_batch(8, buffer_size=100, seed=1))
    assert shuffled != expected
    assert sorted(shuffled) == expected
    assert _ids(tabular.FrameDataset(path, 8, ["id"], filters=filters)) == expected
    read = tabular.read_parquet(8, [Field("id", tf.int64, 0)], filters=filters)
    assert _ids(tf.data.Dataset.from_tensors(path).apply(read)) == expected
    pa.orc.write_table(_table().select(["id", "i", "s"]), tmp_path / "a.orc")
    orc = tabular.TabularDataset.from_orc(str(tmp_path / "a.orc"), ["id"], filters=[("i", ">", 1)])
    assert _ids(orc.batch(32)) == _expected(path, [("i", ">", 1)])
    other_case = make(path, ["ID"], filters=[("KIND", "==", "y")], field_ignore_case=True)
    assert _ids(other_case.batch(32)) == _expected(path, [("kind", "==", "y")])


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        ("id > 3", TypeError, "wanted a list of"),
        ([], ValueError, "is empty, wanted at least one"),
        ([[]], TypeError, "is not a list of"),
        ([("id", ">")], TypeError, r"is not \(column, op, value\)"),
        ([(3, ">", 3)], TypeError, "the column is 3, wanted a name"),
        ([("id", "=>", 3)], ValueError, "the op is '=>', wanted one of =, =="),
        ([("id", ">", None)], ValueError, "None, which no row is equal to"),
        ([("id", ">", [3])], TypeError, "of type list, wanted bool"),
        ([("id", "in", 3)], TypeError, "the value is 3, wanted a list"),
        ([("id", "in", [3, "a"])], TypeError, "several types"),
        ([("id", ">", 2**64)], ValueError, "wanted one of 64 bits"),
    ],
)
def test_filters_are_checked(path, filters, error, message):
    with pytest.raises(error, match=f"filters.*{message}"):
        lockstep.data.ParquetDataset(path, 32, ["id"], filters=filters)


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        ([("id", ">", "a")], tf.errors.InvalidArgumentError, r"\('id', '>', 'a'\): the column is int64"),
        (
            [("i", "<", 3), ("list", "==", 3)],
            tf.errors.InvalidArgumentError,
            r"\('list', '==', 3\): the column is list",
        ),
        ([("x", "==", 3)], tf.errors.NotFoundError, r"\('x', '==', 3\): there is no such column: the file has id, "),
    ],
)
def test_filters_that_do_not_fit_the_file_name_it(path, filters, error, message):
    with pytest.raises(error, match=f"a.parquet': filters: {message}"):
        iter(lockstep.data.ParquetDataset(path, 32, ["id"], filters=filters))


def test_filters_and_steps_of_batches_exclude_each_other(path):
    with pytest.raises(tf.errors.InvalidArgumentError, match="partition_by is 'batches' and filters are given"):
        lockstep.data.ParquetDataset(path, 32, ["id"], filters=[("id", ">", 3)], partition_by="batches")
