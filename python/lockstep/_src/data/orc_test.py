"""ORC files, compared with pyarrow."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import orc

from lockstep.data import DataFrame, ParquetDataset, TabularDataset

ROWS = 30_000


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory):
    table = pa.table(
        {"id": range(ROWS), "ids": [[i, -i][: i % 3] for i in range(ROWS)], "text": [f"row {i}" for i in range(ROWS)]}
    )
    path = str(tmp_path_factory.mktemp("orc") / "a.orc")
    orc.write_table(table, path, stripe_size=1 << 16)
    assert orc.ORCFile(path).nstripes > 1
    return path


@pytest.mark.parametrize("workers", [1, 3])
def test_every_row_is_read_once(path, workers):
    rows = []
    for worker in range(workers):
        for batch in ParquetDataset(path, 4096, None, workers, worker):
            rows += zip(batch["id"].numpy().tolist(), batch["ids"].to_list(), batch["text"].numpy(), strict=True)
    assert rows == [(i, [i, -i][: i % 3], b"row %d" % i) for i in range(ROWS)]


def test_a_table_of_orc_files_gives_sparse_batches(path):
    batch = next(iter(TabularDataset.from_orc(path, [DataFrame.Field("ids")]).batch(5)))
    assert tf.RaggedTensor.from_sparse(batch["ids"]).to_list() == [[], [1], [2, -2], [], [4]]


def test_a_damaged_file_is_named(path, tmp_path):
    with open(path, "rb") as file:
        (tmp_path / "bad.orc").write_bytes(file.read()[:1000])
    with pytest.raises(tf.errors.DataLossError, match="bad.orc': not a readable ORC file"):
        ParquetDataset(str(tmp_path / "bad.orc"))


# Values for which statistics are often wrong: nulls, the least and greatest value of a type, sums that overflow.
_EXTREMES = {
    "int8": pa.array([None, -128, 127, 0], pa.int8()),
    "int16": pa.array([-(2**15), None, 2**15 - 1, 0], pa.int16()),
    "int32": pa.array([-(2**31), 2**31 - 1, None, 0], pa.int32()),
    "int64": pa.array([2**63 - 1, 2**63 - 1, None, 5], pa.int64()),
    "negative": pa.array([-(2**63), -(2**63), -1, -5], pa.int64()),
    "nulls": pa.array([None] * 4, pa.int64()),
    "float": pa.array([1e-30, 3e38, -3e38, 0.1], pa.float32()),
    "double": pa.array([1e308, 1e308, -0.0, None], pa.float64()),
    "nan": pa.array([float("nan"), 1.0, 2.0, 3.0], pa.float64()),
    "late nan": pa.array([1.0, 2.0, float("nan"), 3.0], pa.float64()),
    "infinite": pa.array([float("inf"), float("-inf"), 0.0, 1.0], pa.float64()),
    "bool": pa.array([True, None, False, True]),
    "date": pa.array([-10_000, 0, None, 40_000], pa.date32()),
    "timestamp": pa.array([-1, 0, None, 10**15], pa.timestamp("ns")),
    "string": pa.array(["", None, "é" * 300, "z" * 2000]),
    "binary": pa.array([b"", b"\0\xff", None, b"x"]),
    "list": pa.array([[1, None], None, [], [2**40]], pa.list_(pa.int64())),
    "lists": pa.array([[["a"], []], None, [None], [["b", "c"]]], pa.list_(pa.list_(pa.string()))),
}
_DEFAULTS = {"string": "null", "binary": "null", "bool": True, "lists": "null"}


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("rows", [0, 4, 80_000])
def test_values_of_all_kinds_pass_the_comparison_with_statistics(tmp_path, compression, rows):
    table = pa.table(_EXTREMES)
    table = pa.concat_tables([table] * (rows // 4)) if rows else table.slice(0, 0)
    path = str(tmp_path / "a.orc")
    orc.write_table(table, path, compression=compression, stripe_size=1 << 20)
    fields = [DataFrame.Field(name, default_value=_DEFAULTS.get(name, 0)) for name in _EXTREMES]
    read = [len(batch["int8"]) for batch in ParquetDataset(path, 30_000, fields)]
    assert sum(read) == rows


def _replace_stripes(path, by):
    """Replaces the stripes of a file by another file's stripes, but keeps the file's own statistics."""
    length = orc.ORCFile(path).content_length
    assert orc.ORCFile(by).content_length == length
    with open(path, "rb") as file, open(by, "rb") as other:
        mixed = other.read()[:length] + file.read()[length:]
    with open(path, "wb") as file:
        file.write(mixed)


def test_statistics_may_leave_nan_out(tmp_path):
    path, other = (str(tmp_path / name) for name in ("a.orc", "b.orc"))
    # Some writers ignore NaN in statistics: for them, 0, 1, 2, NaN has the statistics of 0, 1, 2, 0.
    for name, last in ((path, 0.0), (other, float("nan"))):
        orc.write_table(pa.table({"x": [0.0, 1.0, 2.0, last]}), name)
    _replace_stripes(path, other)
    batch = next(iter(ParquetDataset(path, 4)))
    np.testing.assert_array_equal(batch["x"], [0.0, 1.0, 2.0, np.nan])


@pytest.mark.parametrize("is_list", [False, True])
def test_values_with_another_sum_are_an_error_that_names_the_place(tmp_path, is_list):
    whole, other = (str(tmp_path / name) for name in ("a.orc", "b.orc"))
    values = [i * 2654435761 % 2**30 for i in range(1000)]
    # The changed value is neither the least nor the greatest.
    changed = [*values[:500], values[500] ^ 1, *values[501:]]
    for path, column in ((whole, values), (other, changed)):
        orc.write_table(pa.table({"x": [[x] for x in column] if is_list else column}), path)
    _replace_stripes(whole, other)
    text = f"the sum is {sum(changed)}, and the statistics of the stripe say {sum(values)}"
    with pytest.raises(tf.errors.DataLossError, match=f"a.orc' column 'x': stripe 0: its values are damaged: {text}"):
        list(ParquetDataset(whole, 100))
    assert not list(ParquetDataset(whole, 100, skip_corrupted_data=True))


# ORC's tail is metadata (the statistics of stripes), footer, postscript and one byte, in Protocol Buffers. These
# functions read and write their fields, so that a file gets the statistics of another writer.
def _varint(number):
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(encoded + bytes([number]))


def _fields(message):
    """Returns the fields of a message: (number, kind, value)."""
    fields, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            size = varint() if key & 7 == 2 else 8
            value, at = message[at : at + size], at + size
        fields.append((key >> 3, key & 7, value))
    return fields


def _message(fields):
    return b"".join(
        _varint(number << 3 | kind)
        + (_varint(value) if kind == 0 else (_varint(len(value)) if kind == 2 else b"") + value)
        for number, kind, value in fields
    )


def _replaced(fields, number, value):
    """Returns the fields with another value of a varint."""
    return [field for field in fields if field[0] != number] + [(number, 0, value)]


def _rewrite(path, stripe, writer=None):
    """Replaces the statistics of a file that is not compressed.

    Args:
      path: the file.
      stripe: returns the statistics of a stripe's columns, lists of fields, from the file's statistics; None for no
      stripe. writer: the writer's number in the footer; None leaves it.
    """
    with open(path, "rb") as file:
        data = file.read()
    postscript_at = len(data) - 1 - data[-1]
    postscript = _fields(data[postscript_at:-1])
    sizes = dict((number, value) for number, _, value in postscript)
    footer_at = postscript_at - sizes[1]
    metadata_at = footer_at - sizes[5]
    footer = _fields(data[footer_at:postscript_at])
    if writer is not None:
        footer = _replaced(footer, 9, writer)
    metadata = []
    for number, kind, value in _fields(data[metadata_at:footer_at]):
        columns = stripe([_fields(column) for _, _, column in _fields(value)])
        if columns is not None:
            metadata.append((number, kind, _message([(1, 2, _message(column)) for column in columns])))
    parts = [_message(metadata), _message(footer)]
    # Readers take the postscript's fields by their order as well.
    postscript = [(n, k, {1: len(parts[1]), 5: len(parts[0])}.get(n, v)) for n, k, v in postscript]
    parts.append(_message(postscript))
    with open(path, "wb") as file:
        file.write(data[:metadata_at] + b"".join(parts) + bytes([len(parts[2])]))


_COUNT_OF_0 = [(1, 0, 0), (10, 0, 0)]


# Promise (input.md): ORC's statistics of any writer exclude no row that a filter keeps.
@pytest.mark.parametrize("rows", [4, 80_000])
@pytest.mark.parametrize(
    "stripe",
    [lambda columns: [_COUNT_OF_0] * len(columns), lambda columns: columns[:2], lambda columns: None],
    ids=["counts of 0", "of a part of the columns", "of no stripe"],
)
def test_statistics_that_a_writer_left_empty_prove_nothing(tmp_path, stripe, rows):
    # ORC's Java library writes counts of 0 into files without a row index.
    table = pa.concat_tables([pa.table(_EXTREMES)] * (rows // 4))
    path = str(tmp_path / "a.orc")
    orc.write_table(table, path, compression="uncompressed", stripe_size=1 << 20)
    _rewrite(path, stripe, writer=0)
    fields = [DataFrame.Field(name, default_value=_DEFAULTS.get(name, 0)) for name in _EXTREMES]
    read = [batch["int32"].numpy() for batch in ParquetDataset(path, 30_000, fields)]
    np.testing.assert_array_equal(np.concatenate(read), orc.read_table(path)["int32"].fill_null(0))


def _sum_of_once(columns):
    """Returns statistics in which sums are 2.5, as if a repeated number were added once."""
    return [
        [
            (n, k, _message([(m, j, np.float64(2.5).tobytes() if m == 3 else v) for m, j, v in _fields(value)]))
            if n == 3
            else (n, k, value)
            for n, k, value in column
        ]
        for column in columns
    ]


# Promise (input.md): ORC's statistics of any writer exclude no row that a filter keeps.
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_a_sum_of_floating_point_numbers_proves_nothing_but_from_the_cpp_library(tmp_path, kind):
    path = str(tmp_path / "a.orc")
    orc.write_table(pa.table({"x": pa.array([2.5] * 1000, kind)}), path, compression="uncompressed")
    _rewrite(path, _sum_of_once)
    with pytest.raises(tf.errors.DataLossError, match="the sum is 2500, and the statistics of the stripe say 2.5"):
        list(ParquetDataset(path, 1000))
    for writer in (0, 2, 3, 4, 5):
        _rewrite(path, _sum_of_once, writer)
        assert next(iter(ParquetDataset(path, 1000)))["x"].numpy().tolist() == [2.5] * 1000


def test_least_and_greatest_of_any_writer_are_compared(tmp_path):
    path, other = (str(tmp_path / name) for name in ("a.orc", "b.orc"))
    for name, last in ((path, 3.5), (other, 4.5)):
        orc.write_table(pa.table({"x": [1.0, 2.0, last]}), name, compression="uncompressed")
    _replace_stripes(path, other)
    _rewrite(path, lambda columns: columns, writer=0)
    with pytest.raises(tf.errors.DataLossError, match=r"the greatest is 4.5, and the statistics of the stripe say 3.5"):
        list(ParquetDataset(path, 3))
