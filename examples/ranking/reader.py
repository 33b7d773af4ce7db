"""Reads a prepared folder with pyarrow, in the order of its files: for plain training and for comparisons."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schema import Schema, files

Columns = dict[str, np.ndarray]


def _to_columns(table: pa.Table, schema: Schema) -> Columns:
    """Returns arrays by name; a list column `x` becomes values `x` and offsets `x/splits` (rows + 1, from 0)."""
    columns: Columns = {}
    for name in schema.columns:
        column = table[name].combine_chunks()
        if name in schema.lists:
            lengths = column.value_lengths().fill_null(0).to_numpy()
            columns[name] = column.flatten().to_numpy()
            columns[f"{name}/splits"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        else:
            columns[name] = column.to_numpy()
    return columns


def batches(folder: str | os.PathLike, split: str, batch_size: int, drop_remainder: bool = False) -> Iterator[Columns]:
    """Yields the rows of a split in batches that may cross row groups and files."""
    schema = Schema.load(folder)
    pending = schema.arrow().empty_table()
    for path in files(folder, split):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1 << 16, columns=list(schema.columns)):
            pending = pa.concat_tables([pending, pa.Table.from_batches([batch], schema.arrow())])
            start = 0
            while pending.num_rows - start >= batch_size:
                yield _to_columns(pending.slice(start, batch_size), schema)
                start += batch_size
            pending = pending.slice(start)
    if pending.num_rows and not drop_remainder:
        yield _to_columns(pending, schema)


def head(folder: str | os.PathLike, split: str, rows: int) -> Columns:
    """Returns the first `rows` rows of a split, or all of it if it has fewer."""
    return next(batches(folder, split, rows))


def exact_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns the area under the ROC curve by ranks (Mann-Whitney), with ties counted half.

    Raises:
      ValueError: all labels are the same.
    """
    labels = np.asarray(labels) > 0.5
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        raise ValueError(f"AUC needs both labels, got {positives} positive and {negatives} negative rows")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[inverse][labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))
