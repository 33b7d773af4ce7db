"""Files with one flipped bit: how many are read as if nothing was wrong. `-s` prints the table of docs/robustness.md.

FLIPS=700 python -m pytest -s python/lockstep/_src/data/flipped_bits_test.py
"""

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


# Writer, its argument, and the most of 100 flips that may pass unseen.
_KINDS = {
    "ORC, not compressed": (_orc, "uncompressed", 100),
    "ORC, zlib": (_orc, "zlib", 100),
    "ORC, zstd": (_orc, "zstd", 100),
    "Parquet": (_parquet, False, 100),
    "Parquet with checksums": (_parquet, True, 0),
}


def _read(path: str) -> list:
    rows = []
    for batch in ParquetDataset(path, 500):
        rows += [
            (name, value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist())
            for name, value in sorted(batch.items())
        ]
    return rows


@pytest.mark.parametrize("kind", _KINDS)
def test_a_flipped_bit_is_an_error(tmp_path, kind):
    write, argument, most = _KINDS[kind]
    path = str(tmp_path / "file")
    write(path, argument)
    with open(path, "rb") as file:
        whole = file.read()
    wanted = _read(path)
    draw = random.Random(7)
    errors = same = 0
    silent = []
    for _ in range(FLIPS):
        at, bit = draw.randrange(len(whole)), draw.randrange(8)
        data = bytearray(whole)
        data[at] ^= 1 << bit
        with open(path, "wb") as file:
            file.write(data)
        try:
            if _read(path) == wanted:
                same += 1
            else:
                silent.append(at)
        except tf.errors.OpError as error:
            assert path in str(error)
            errors += 1
    print(
        f"\n{kind}: {len(whole)} bytes, {FLIPS} flips: {errors} errors, {same} without effect, {len(silent)} read as other values {silent[:40]}"
    )
    assert len(silent) * 100 <= most * FLIPS
