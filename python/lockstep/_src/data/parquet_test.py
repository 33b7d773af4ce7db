import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from lockstep.data import DataFrame, ParquetDataset

Field = DataFrame.Field

# Columns of every kind that can be a tensor: Arrow's type, and a value from a random number generator.
_KINDS = {
    "bool": (pa.bool_(), lambda r: bool(r.integers(2))),
    "int8": (pa.int8(), lambda r: int(r.integers(-128, 128))),
    "int16": (pa.int16(), lambda r: int(r.integers(-(2**15), 2**15))),
    "int32": (pa.int32(), lambda r: int(r.integers(-(2**31), 2**31))),
    "int64": (pa.int64(), lambda r: int(r.integers(-(2**63), 2**63))),
    "uint8": (pa.uint8(), lambda r: int(r.integers(2**8))),
    "uint16": (pa.uint16(), lambda r: int(r.integers(2**16))),
    "uint32": (pa.uint32(), lambda r: int(r.integers(2**32))),
    "uint64": (pa.uint64(), lambda r: int(r.integers(2**64, dtype=np.uint64))),
    "float16": (pa.float16(), lambda r: np.float16(r.normal())),
    "float32": (pa.float32(), lambda r: float(np.float32(r.normal()))),
    "float64": (pa.float64(), lambda r: float(r.normal())),
    "string": (pa.string(), lambda r: "é" * int(r.integers(0, 40))),
    "large_string": (pa.large_string(), lambda r: "x" * int(r.integers(0, 40))),
    "binary": (pa.binary(), lambda r: r.bytes(int(r.integers(0, 40)))),
    "fixed_size_binary": (pa.binary(5), lambda r: r.bytes(5)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda r: "abc"[int(r.integers(3))]),
    "list": (pa.list_(pa.int64()), lambda r: r.integers(0, 100, r.integers(0, 6)).tolist()),
    "large_list": (pa.large_list(pa.float32()), lambda r: r.integers(0, 100, r.integers(0, 6)).astype(float).tolist()),
    "list_of_strings": (pa.list_(pa.string()), lambda r: ["s" * int(n) for n in r.integers(0, 30, r.integers(0, 4))]),
    "list_of_bools": (pa.list_(pa.bool_()), lambda r: [bool(b) for b in r.integers(0, 2, r.integers(0, 4))]),
    "nested": (
        pa.list_(pa.list_(pa.int32())),
        lambda r: [[int(n)] * int(n) for n in r.integers(0, 4, r.integers(0, 4))],
    ),
    "vector": (pa.list_(pa.float32(), 4), lambda r: r.integers(0, 100, 4).astype(float).tolist()),
    "matrix": (pa.list_(pa.list_(pa.int16(), 2), 3), lambda r: r.integers(0, 100, (3, 2)).tolist()),
    "list_of_vectors": (pa.list_(pa.list_(pa.int64(), 2)), lambda r: r.integers(0, 9, (r.integers(0, 4), 2)).tolist()),
}


def _table(rows: int, seed: int, kinds=tuple(_KINDS)) -> pa.Table:
    random = np.random.default_rng(seed)
    columns = {}
    for kind in kinds:
        arrow_type, value = _KINDS[kind]
        values = [value(random) for _ in range(rows)]
        if pa.types.is_dictionary(arrow_type):
            columns[kind] = pa.array(values, pa.string()).dictionary_encode()
        else:
            columns[kind] = pa.array(values, arrow_type)
    return pa.table(columns)


def _write(path, table: pa.Table, **options) -> str:
    pq.write_table(table, path, **options)
    return str(path)


def _plain(value):
    """Returns a tensor or Arrow column as nested lists, strings as bytes."""
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.Tensor):
        return value.numpy().tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value.encode() if isinstance(value, str) else value.item() if isinstance(value, np.generic) else value


def _columns(dataset) -> dict[str, list]:
    """Returns all rows of a dataset, by column."""
    columns = {name: [] for name in dataset.element_spec}
    for batch in dataset:
        for name, value in batch.items():
            columns[name] += _plain(value)
    return columns


def _ids(dataset, name="id") -> list[int]:
    return _columns(dataset)[name]


def _id_file(path, first: int, rows: int, **options) -> str:
    return _write(path, pa.table({"id": np.arange(first, first + rows)}), **options)


@pytest.fixture(name="every_type", scope="module")
def _every_type(tmp_path_factory):
    """Returns a file with a column of each kind, and its columns as they are read."""
    path = _write(tmp_path_factory.mktemp("types") / "a.parquet", _table(233, seed=1), row_group_size=50)
    return path, _columns(ParquetDataset(path, batch_size=32))


@pytest.mark.parametrize("kind", _KINDS)
def test_every_type_reads_as_pyarrow_reads_it(every_type, kind):
    path, columns = every_type
    assert sorted(columns) == sorted(_KINDS)
    assert columns[kind] == _plain(pq.read_table(path)[kind].to_pylist())


def test_specs_have_dtype_ragged_rank_and_shape(tmp_path):
    path = _write(tmp_path / "a.parquet", _table(3, seed=2))
    spec = ParquetDataset(path, batch_size=2).element_spec
    assert spec["uint16"] == tf.TensorSpec([None], tf.uint16)
    assert spec["binary"] == tf.TensorSpec([None], tf.string)
    assert spec["vector"] == tf.TensorSpec([None, 4], tf.float32)
    assert spec["matrix"] == tf.TensorSpec([None, 3, 2], tf.int16)
    assert spec["list"] == tf.RaggedTensorSpec([None, None], tf.int64, 1)
    assert spec["nested"] == tf.RaggedTensorSpec([None, None, None], tf.int32, 2)
    assert spec["list_of_vectors"] == tf.RaggedTensorSpec([None, None, 2], tf.int64, 1)
    dropped = ParquetDataset(path, batch_size=2, drop_remainder=True).element_spec
    assert dropped["vector"] == tf.TensorSpec([2, 4], tf.float32)
    assert dropped["list"].shape.as_list() == [2, None]


@pytest.mark.parametrize("seed", range(6))
def test_batches_are_the_tables_slices_whatever_the_borders(tmp_path, seed):
    random = np.random.default_rng(seed)
    table = _table(int(random.integers(0, 400)), seed, ("int64", "float32", "string", "bool", "nested", "vector"))
    files, start = [], 0
    while start < table.num_rows or not files:
        rows = int(random.integers(1, 150))
        files.append(
            _write(
                tmp_path / f"{len(files):03}.parquet",
                table.slice(start, rows),
                row_group_size=int(random.integers(1, 60)),
            )
        )
        start += rows
    batch_size = int(random.integers(1, 100))
    dataset = ParquetDataset(
        files, batch_size, num_threads=int(random.integers(1, 4)), _piece_rows=int(random.integers(0, 50))
    )
    batches = list(dataset)
    assert len(batches) == -(-table.num_rows // batch_size) == dataset.cardinality()
    for i, batch in enumerate(batches):
        expected = table.slice(i * batch_size, batch_size)
        for name in table.column_names:
            assert _plain(batch[name]) == _plain(expected[name].to_pylist()), (seed, i, name)


def test_dates_and_times_are_the_integers_of_the_file(tmp_path):
    day = datetime.date(2021, 3, 4)
    moment = datetime.datetime(2021, 3, 4, 5, 6, 7, 8000)
    table = pa.table(
        {
            "date": pa.array([day], pa.date32()),
            "ms": pa.array([moment], pa.timestamp("ms")),
            "us": pa.array([moment], pa.timestamp("us", "UTC")),
            "time": pa.array([datetime.time(1, 2, 3)], pa.time32("ms")),
        }
    )
    (batch,) = ParquetDataset(_write(tmp_path / "a.parquet", table))
    assert batch["date"].dtype == tf.int32 and batch["date"][0] == (day - datetime.date(1970, 1, 1)).days
    seconds = int(moment.replace(tzinfo=datetime.timezone.utc, microsecond=0).timestamp())
    assert batch["ms"].dtype == tf.int64 and batch["ms"][0] == seconds * 1000 + 8
    assert batch["us"][0] == seconds * 1_000_000 + 8000
    assert batch["time"].dtype == tf.int32 and batch["time"][0] == 3_723_000


def test_large_values_share_memory_and_are_never_written_over(tmp_path):
    values = np.arange(100_000, dtype=np.float32)
    (batch,) = ParquetDataset(_write(tmp_path / "a.parquet", pa.table({"x": values})), batch_size=100_000)
    doubled = tf.function(lambda x: tf.nn.relu(x * 2 - 1))(batch["x"])
    np.testing.assert_array_equal(batch["x"], values)
    np.testing.assert_array_equal(doubled, np.maximum(values * 2 - 1, 0))


# Columns and fields.


def test_fields_are_chosen_by_name(tmp_path):
    path = _write(tmp_path / "a.parquet", pa.table({"a": [1, 2], "b": [3, 4], "c": [[5], []]}))
    assert _columns(ParquetDataset(path, fields=["c", "a"])) == {"a": [1, 2], "c": [[5], []]}
    assert _columns(ParquetDataset(path, fields="b")) == {"b": [3, 4]}
    fields = [Field("c", tf.int64, 1, []), Field("a", tf.int64)]
    assert _columns(ParquetDataset(path, fields=fields)) == {"a": [1, 2], "c": [[5], []]}


def test_lists_of_one_length_read_as_a_shape(tmp_path):
    path = _write(tmp_path / "a.parquet", pa.table({"e": [[1.0, 2.0], [3.0, 4.0]], "r": [[1.0, 2.0], [3.0]]}))
    (batch,) = ParquetDataset(path, 2, fields=[Field("e", shape=[2])])
    assert batch["e"].shape == [2, 2] and _plain(batch["e"]) == [[1, 2], [3, 4]]
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(ParquetDataset(path, 2, fields=[Field("r", shape=[2])]))
    assert f"file '{path}' column 'r': row 1 has a list of 1 values, wanted shape [2]" in str(error.value)


# Promise (hybridbackend.md): it has no effect if it is not selected (HybridBackend, a crash: one odd column makes a
# file unreadable).
def test_an_unreadable_column_that_is_not_selected_does_no_harm(tmp_path):
    table = pa.table({"a": [1, 2], "odd": [{"x": 1}, {"x": 2}], "money": pa.array([1, 2], pa.decimal128(5, 2))})
    path = _write(tmp_path / "a.parquet", table)
    assert _columns(ParquetDataset(path, fields=["a"])) == {"a": [1, 2]}
    # If all columns are requested, those that can be tensors are read.
    assert _columns(ParquetDataset(path)) == {"a": [1, 2]}
    with pytest.raises(tf.errors.UnimplementedError) as error:
        ParquetDataset(path, fields=["money"])
    assert f"file '{path}' column 'money': type decimal128(5, 2) cannot be read as a tensor" in str(error.value)


# Nulls.


# Promise (hybridbackend.md): an error that names the row, or the field's default (HybridBackend, a wrong result: inner
# nulls of numeric lists read as 0).
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x", "row 70 is null, and the field has no default_value"),
        ("l", "row 50 holds a value that is null, and the field has no default_value"),
    ],
    ids=["value", "list"],
)
def test_a_null_without_default_is_an_error_that_names_its_row(tmp_path, name, message):
    table = pa.table(
        {"x": pa.array([*range(70), None, 7]), "l": pa.array([[1]] * 50 + [[2, None]] + [[3]] * 20 + [None])}
    )
    path = _write(tmp_path / "a.parquet", table, row_group_size=30)
    dataset = iter(ParquetDataset(path, 10, fields=[name], _piece_rows=10))
    with pytest.raises(tf.errors.DataLossError) as error:
        for _ in range(8):
            next(dataset)
    assert f"file '{path}' column '{name}': {message}" in str(error.value)


# Promise (hybridbackend.md): an error that names the row, or the field's default (HybridBackend, a wrong result: inner
# nulls of numeric lists read as 0).
# Promise (hybridbackend.md): the field's default, a filter, or `skip_corrupted_data` (HybridBackend: a null in a row is
# always an error).
def test_a_default_stands_for_nulls(tmp_path):
    table = pa.table(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "f": pa.array([None, 0.5, None], pa.float32()),
            "b": pa.array([None, True, False]),
            "s": pa.array(["a", None, ""]),
            "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
            "ls": pa.array([[None, "b"], None, []], pa.list_(pa.string())),
        }
    )
    path = _write(tmp_path / "a.parquet", table)
    defaults = {"i": -1, "f": 2.5, "b": True, "s": "none", "l": 9, "ls": "x"}
    (batch,) = ParquetDataset(path, 3, fields=[Field(name, default_value=value) for name, value in defaults.items()])
    assert {name: _plain(value) for name, value in batch.items()} == {
        "i": [1, -1, 3],
        "f": [2.5, 0.5, 2.5],
        "b": [True, True, False],
        "s": [b"a", b"none", b""],
        "l": [[1, 9], [], []],
        "ls": [[b"x", b"b"], [], []],
    }


# Promise (hybridbackend.md): as many as the batch has, in every file and in the last batch (HybridBackend, a wrong
# result: rows of default values do not fit the last batch).
def test_a_default_stands_for_a_column_that_a_file_lacks(tmp_path):
    one = _write(tmp_path / "1.parquet", pa.table({"a": [1, 2], "l": [[1], [2]], "s": ["x", "y"]}))
    two = _write(tmp_path / "2.parquet", pa.table({"a": [3]}))
    fields = [
        "a",
        Field("l", tf.int64, 1, default_value=0),
        Field("s", tf.string, default_value="none"),
        Field("n", tf.float32, default_value=0.5),
    ]
    columns = _columns(ParquetDataset([one, two], 2, fields=fields))
    assert columns == {"a": [1, 2, 3], "l": [[1], [2], []], "s": [b"x", b"y", b"none"], "n": [0.5, 0.5, 0.5]}


def test_a_default_must_fit_its_dtype(tmp_path):
    path = _write(tmp_path / "a.parquet", pa.table({"a": [1, 2]}))
    with pytest.raises(ValueError, match="field 'a': default_value is 0.5, wanted one int64"):
        ParquetDataset(path, fields=[Field("a", default_value=0.5)])


# Files.


# Promise (hybridbackend.md): read as a file (HybridBackend, a crash: a relative file name).
# Promise (hybridbackend.md): read (HybridBackend, a crash: names that begin with `file://`, globs, folders).
@pytest.mark.parametrize(
    "names",
    [
        lambda folder: "day",
        lambda folder: "day/*.parquet",
        lambda folder: [f"day/{i}.parquet" for i in range(3)],
        lambda folder: folder / "day",
        lambda folder: f"file://{folder}/day",
    ],
    ids=["folder", "pattern", "files", "path", "URL"],
)
def test_relative_names_patterns_and_folders(tmp_path, monkeypatch, names):
    (tmp_path / "day").mkdir()
    for i in range(3):
        _id_file(tmp_path / "day" / f"{i}.parquet", 10 * i, 10)
    (tmp_path / "day" / "_SUCCESS").touch()
    monkeypatch.chdir(tmp_path)
    assert _ids(ParquetDataset(names(tmp_path), 4)) == list(range(30))


def test_names_may_come_from_tensors_and_datasets(tmp_path):
    files = [_id_file(tmp_path / f"{i}.parquet", 10 * i, 10) for i in range(3)]
    fields = [Field("id", tf.int64, 0, [])]
    assert _ids(ParquetDataset(tf.constant(files), 4, fields)) == list(range(30))
    assert _ids(ParquetDataset(tf.data.Dataset.from_tensor_slices(files), 4, fields)) == list(range(30))
    with pytest.raises(ValueError, match="every field needs a dtype"):
        ParquetDataset(tf.constant(files), 4, ["id"])


# Promise (hybridbackend.md): the same everywhere (HybridBackend, a wrong result: the order of rows of several files
# depends on the number of cores).
def test_files_in_turn(tmp_path):
    files = [_id_file(tmp_path / f"{i}.parquet", 100 * i, rows) for i, rows in enumerate((5, 3, 2))]
    dataset = ParquetDataset(files, 2, num_parallel_reads=2)
    assert _ids(dataset) == [0, 1, 100, 101, 2, 3, 102, 200, 4, 201]
    assert _ids(dataset) == _ids(ParquetDataset(files, 2, num_parallel_reads=2, num_threads=1, _piece_rows=1))
    assert _ids(ParquetDataset(files, 1, num_parallel_reads=2, num_sequential_reads=2)) == _ids(dataset)


# Shares.


# Promise (hybridbackend.md): every row is read once, by one worker (HybridBackend, a wrong result: `partition_count`
# drops row groups).
@pytest.mark.parametrize("partition_by", ["rows", "row_groups", "batches"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_shares_are_the_data(tmp_path, partition_by, workers):
    files = [_id_file(tmp_path / "0.parquet", 0, 83, row_group_size=10), _id_file(tmp_path / "1.parquet", 83, 19)]
    shares = [_ids(ParquetDataset(files, 4, None, workers, i, partition_by=partition_by)) for i in range(workers)]
    assert sorted(sum(shares, [])) == list(range(102))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= {"rows": 1, "row_groups": 19, "batches": 4}[partition_by]


def test_shares_by_batches_are_one_workers_batches(tmp_path):
    files = [_id_file(tmp_path / "0.parquet", 0, 50, row_group_size=7), _id_file(tmp_path / "1.parquet", 50, 14)]
    shares = [list(ParquetDataset(files, 4, None, 3, i, partition_by="batches")) for i in range(3)]
    for step, batch in enumerate(ParquetDataset(files, 12, partition_count=1)):
        assert sum((_plain(share[step]["id"]) for share in shares), []) == _plain(batch["id"])


def test_the_job_gives_the_share_unless_told_otherwise(tmp_path, monkeypatch):
    from lockstep._src.data import parquet
    from lockstep._src.engine import cluster

    path = _id_file(tmp_path / "a.parquet", 0, 10)
    job = cluster.Cluster.from_environment({"LOCKSTEP_RANK": "1", "LOCKSTEP_WORLD_SIZE": "2"})
    monkeypatch.setattr(parquet, "context", job)
    assert _ids(ParquetDataset(path)) == [5, 6, 7, 8, 9]
    assert _ids(ParquetDataset(path, partition_count=1)) == list(range(10))
    assert _ids(ParquetDataset(path, partition_count=5, partition_index=0)) == [0, 1]


# tf.data.


def test_transformations_compose(tmp_path):
    path = _write(tmp_path / "a.parquet", pa.table({"id": range(100), "l": [[i] * (i % 3) for i in range(100)]}))
    dataset = ParquetDataset(path, 10).prefetch(2).map(lambda b: (b["id"] * 2, b["l"].row_lengths())).take(3).repeat(2)
    batches = [(i.numpy().tolist(), n.numpy().tolist()) for i, n in dataset]
    assert batches == [([2 * i for i in range(k, k + 10)], [i % 3 for i in range(k, k + 10)]) for k in (0, 10, 20)] * 2
    assert ParquetDataset(path, 8, drop_remainder=True).cardinality() == 12
    assert len(_ids(ParquetDataset(path, 8, drop_remainder=True))) == 96


@pytest.mark.parametrize("steps", [1, 3, 50, 100])
def test_every_pass_starts_at_the_beginning_and_may_be_left_early(tmp_path, steps):
    path = _id_file(tmp_path / "a.parquet", 0, 1000)
    dataset = ParquetDataset(path, 10, _piece_rows=20)
    for left_at in (2, steps):
        assert [int(b["id"][0]) for b in dataset.take(left_at)] == list(range(0, 10 * left_at, 10))


def test_graph_mode_iterators(tmp_path):
    path = _write(tmp_path / "a.parquet", pa.table({"id": range(10), "l": [[i] * (i % 3) for i in range(10)]}))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        one_shot = ParquetDataset(path, 4).make_one_shot_iterator().get_next()
        initializable = tf.compat.v1.data.make_initializable_iterator(ParquetDataset(path, 4).prefetch(1))
        element = initializable.get_next()
        for _ in range(2):
            session.run(initializable.initializer)
            assert session.run(element["id"]).tolist() == [0, 1, 2, 3]
            assert session.run(element["l"]).to_list() == [[4], [5, 5], [], [7]]
        assert session.run(one_shot["id"]).tolist() == [0, 1, 2, 3]
        session.run(one_shot), session.run(one_shot["l"])
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(one_shot)


# Promise (hybridbackend.md): saved, also with the model's checkpoint (HybridBackend: the position in the data cannot be
# saved).
@pytest.mark.parametrize("partition_by", ["rows", "batches"])
def test_the_position_is_saved_and_restored(tmp_path, partition_by):
    files = [_id_file(tmp_path / f"{i}.parquet", 40 * i, 40, row_group_size=15) for i in range(3)]

    def iterator(batch_size=7):
        return iter(ParquetDataset(files, batch_size, None, 2, 1, partition_by=partition_by))

    first = iterator()
    seen = [_plain(next(first)["id"]) for _ in range(4)]
    path = tf.train.Checkpoint(iterator=first).write(str(tmp_path / "checkpoint"))
    rest = [_plain(b["id"]) for b in first]
    restored = iterator()
    next(restored)
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    assert [_plain(b["id"]) for b in restored] == rest
    assert sum(seen + rest, []) == _ids(ParquetDataset(files, 7, None, 2, 1, partition_by=partition_by))
    with pytest.raises(tf.errors.FailedPreconditionError, match="other data: .* another batch size"):
        tf.train.Checkpoint(iterator=iterator(8)).read(path)


def test_the_graph_of_a_dataset_makes_the_same_dataset(tmp_path):
    fields = ["id", Field("l", default_value=3), Field("x", tf.string, default_value=b"\xff\x00")]
    path = _write(tmp_path / "a.parquet", pa.table({"id": range(9), "l": [[i] for i in range(9)]}))
    dataset = ParquetDataset(path, 4, fields, 2, 1, drop_remainder=True)
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset._variant_tensor)
    copy = tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph), dataset.element_spec)
    assert (
        _columns(copy) == _columns(dataset) == {"id": [4, 5, 6, 7], "l": [[4], [5], [6], [7]], "x": [b"\xff\x00"] * 4}
    )


# Errors.


def _message(make) -> str:
    with pytest.raises(tf.errors.OpError) as error:
        list(make())
    return f"{type(error.value).__name__}: {error.value.message}"


# Promise (hybridbackend.md): an error that names it (HybridBackend, a crash: a missing second file; one truncated or
# empty).
@pytest.mark.parametrize(
    ("files", "fields", "kind", "text"),
    [
        (["missing"], None, "NotFoundError", "'missing' does not exist"),
        (["good", "missing"], [Field("a", tf.int64, 0, [])], "NotFoundError", "'missing' does not exist"),
        (["good"], ["z"], "NotFoundError", "'good' has no column 'z': it has a, b"),
        (["good", "other"], ["b"], "NotFoundError", "'other' has no column 'b': it has a"),
        (["good"], [Field("a", tf.float32)], "InvalidArgumentError", "'good' column 'a' is int64, wanted float32"),
        (["good", "other"], ["a"], "InvalidArgumentError", "'other' column 'a' is float32, wanted int64"),
        (
            ["good"],
            [Field("b", tf.int64, 0, [])],
            "InvalidArgumentError",
            "'good' column 'b' is list<int64>, wanted int64",
        ),
    ],
    ids=["missing", "second missing", "column", "second's column", "type", "second's type", "list"],
)
def test_errors_name_file_and_column_and_what_was_wanted(tmp_path, files, fields, kind, text):
    _write(tmp_path / "good", pa.table({"a": [1, 2], "b": [[1], [2]]}))
    _write(tmp_path / "other", pa.table({"a": pa.array([1.0, 2.0], pa.float32())}))
    names = [str(tmp_path / name) for name in files]
    message = _message(lambda: ParquetDataset(names, fields=fields))
    assert message.startswith(kind) and f"file '{tmp_path}/{text[1:]}" in message


# Promise (hybridbackend.md): an error that names it (HybridBackend, a crash: a missing second file; one truncated or
# empty).
@pytest.mark.parametrize("place", ["first", "second"])
@pytest.mark.parametrize("damage", ["empty", "truncated", "text", "middle"])
def test_damaged_files_are_named_as_first_and_as_second_file(tmp_path, damage, place):
    good = _id_file(tmp_path / "good.parquet", 0, 1000)
    whole = (tmp_path / "good.parquet").read_bytes()
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(
        {"empty": b"", "truncated": whole[: len(whole) // 2], "text": b"a,b\n1,2\n" * 100,
         "middle": whole[:100] + bytes(500) + whole[600:]}[damage]
    )  # fmt: skip
    files = [bad] if place == "first" else [good, bad]
    message = _message(lambda: ParquetDataset(files, fields=[Field("id", tf.int64, 0, [])]))
    assert message.startswith("DataLossError: ") and f"file '{bad}'" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0, wanted 1 or more"),
        ({"batch_size": -1}, "batch_size is -1, wanted 1 or more"),
        ({"partition_count": 0, "partition_index": 0}, "partition_count is 0, wanted 1 or more"),
        ({"partition_count": 2}, "partition_count is 2 and partition_index is None, wanted both or none"),
        ({"partition_index": 0}, "partition_count is None and partition_index is 0, wanted both or none"),
        ({"num_parallel_reads": 0}, "num_parallel_reads is 0, wanted 1 or more"),
        ({"num_sequential_reads": 0}, "num_sequential_reads is 0, wanted 1 or more"),
        ({"num_threads": 0}, "num_threads is 0, wanted 1 or more"),
        ({"partition_by": "files"}, "partition_by is 'files', wanted one of 'rows', 'row_groups', 'batches'"),
        ({"fields": []}, "fields is empty"),
        ({"fields": ["id", "id"]}, "field 'id' is given twice"),
    ],
    ids=str,
)
def test_arguments_are_checked(tmp_path, arguments, message):
    path = _id_file(tmp_path / "a.parquet", 0, 10)
    with pytest.raises(ValueError, match=message):
        ParquetDataset(path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_count": 2, "partition_index": 2}, "partition_index is 2, wanted 0 to 1"),
        ({"batch_size": tf.constant(0, tf.int64)}, "batch_size is 0, wanted 1 or more"),
    ],
    ids=["share", "tensor"],
)
def test_arguments_that_may_be_tensors_are_checked_by_the_reader(tmp_path, arguments, message):
    path = _id_file(tmp_path / "a.parquet", 0, 10)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ParquetDataset(path, **arguments)


def test_a_file_of_no_rows_gives_no_batch(tmp_path):
    path = _write(tmp_path / "a.parquet", _table(0, seed=3, kinds=("int64", "list", "string")))
    dataset = ParquetDataset(path, 4)
    assert list(dataset) == [] and dataset.cardinality() == 0
    full = _id_file(tmp_path / "b.parquet", 0, 3)
    none = _id_file(tmp_path / "c.parquet", 0, 0)
    assert _ids(ParquetDataset([none, full, none], 2)) == [0, 1, 2]
