"""Counts how many files with one flipped bit are read as other values. Prints the lines of docs/robustness.md.

FLIPS=700 python -m pytest -s python/lockstep/_src/data/flipped_bits_test.py
"""

import hashlib
import os
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pyarrow import orc

from lockstep.data import ParquetDataset

ROWS = 3000
FLIPS = int(os.environ.get("FLIPS", 100))


def _table() -> pa.Table:
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "label": rng.integers(0, 2, ROWS),
            "user": rng.integers(0, 1 << 40, ROWS),
            "score": rng.normal(size=ROWS),
            "genres": [rng.integers(0, 20, i % 4).tolist() for i in range(ROWS)],
            "text": [f"item {i % 700}" for i in range(ROWS)],
        }
    )


def _orc(path: str, compression: str) -> None:
    orc.write_table(_table(), path, compression=compression)


def _parquet(path: str, checksums: bool) -> None:
    pq.write_table(_table(), path, write_page_checksum=checksums)


# For each kind: the writer and its argument, whether the file's checksum is given, and a limit: the number of 100 flips
# that may be read as other values.
_KINDS = {
    "ORC, not compressed": (_orc, "uncompressed", False, 50),
    "ORC, zlib": (_orc, "zlib", False, 25),
    "ORC, zstd": (_orc, "zstd", False, 25),
    "ORC, with the file's checksum": (_orc, "zlib", True, 0),
    "Parquet, without page checksums": (_parquet, False, False, 100),
    "Parquet, with page checksums": (_parquet, True, False, 0),
}


def _read(path: str, checksums: dict[str, str] | None) -> list:
    rows = []
    for batch in ParquetDataset(path, ROWS, checksums=checksums):
        rows += [
            (name, value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist())
            for name, value in batch.items()
        ]
    return rows


@pytest.mark.parametrize("kind", _KINDS)
def test_a_flipped_bit_is_an_error(tmp_path, kind):
    write, argument, has_checksum, most = _KINDS[kind]
    path = str(tmp_path / "file")
    write(path, argument)
    with open(path, "rb") as file:
        whole = file.read()
    checksums = {path: hashlib.sha256(whole).hexdigest()} if has_checksum else None
    wanted = _read(path, checksums)
    draw = random.Random(7)
    found = {"errors": 0, "without effect": 0, "read as other values": 0}
    for _ in range(FLIPS):
        data = bytearray(whole)
        data[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        with open(path, "wb") as file:
            file.write(data)
        try:
            found["without effect" if _read(path, checksums) == wanted else "read as other values"] += 1
        except tf.errors.OpError as error:
            assert path in str(error)
            found["errors"] += 1
    print(f"\n{kind}: {len(whole)} bytes, {FLIPS} flips: {found}")
    assert found["read as other values"] * 100 <= most * FLIPS
