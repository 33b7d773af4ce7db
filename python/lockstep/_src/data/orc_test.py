"""ORC files, beside pyarrow."""

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
