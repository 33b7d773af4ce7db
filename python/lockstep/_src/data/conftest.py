"""A fixture that damages files, for the tests of reading."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest


@pytest.fixture(name="damage")
def _damage() -> Callable[[Path, Sequence[int]], str]:
    """Returns a function that destroys the data of some row groups of an uncompressed file and returns its name."""

    def damage(path: Path, groups: Sequence[int]) -> str:
        data = bytearray(path.read_bytes())
        metadata = pq.read_metadata(path)
        for group in groups:
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                begin = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
                data[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        path.write_bytes(data)
        return str(path)

    return damage
