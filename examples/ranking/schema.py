"""A prepared data set: a folder of Parquet files, and `schema.json`, which describes their columns.

    FOLDER/schema.json
    FOLDER/train/part-00000.parquet ...   zstd, row groups of `row_group_rows` rows
    FOLDER/eval/part-00000.parquet ...

Columns: `label` (float32, 0 or 1), numeric features (float32), categorical features (int64 ids below the rows of their
table), list features (list<int64>).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

LABEL = "label"
TRAIN = "train"
EVAL = "eval"
SPLITS = (TRAIN, EVAL)
_FILE_NAME = "schema.json"
# Increase this number when the files or the generated data change: folders of another version are made again.
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Schema:
    """The content of a prepared folder.

    Attributes:
      name: the data set's name, as the report prints it.
      numeric: names of the float32 columns.
      categorical: rows of the embedding table of each int64 column.
      lists: rows of the embedding table of each list<int64> column.
      global_batch, learning_rate, epochs: recommended values, which flags override: rows of a training step over all
        workers, Adagrad's rate, and passes over the training rows.
      row_group_rows: rows of a Parquet row group; only the last one of a split is shorter.
      train_rows, eval_rows: rows of the two splits.
      origin: the source and settings of the folder; a folder with the same origin is not made again.
    """

    name: str
    numeric: tuple[str, ...]
    categorical: dict[str, int]
    lists: dict[str, int]
    global_batch: int
    learning_rate: float
    epochs: int
    row_group_rows: int
    train_rows: int
    eval_rows: int
    origin: dict

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns all columns, the label first."""
        return (LABEL, *self.numeric, *self.categorical, *self.lists)

    def arrow(self) -> pa.Schema:
        """Returns the types of the Parquet files."""
        fields = [pa.field(name, pa.float32(), nullable=False) for name in (LABEL, *self.numeric)]
        fields += [pa.field(name, pa.int64(), nullable=False) for name in self.categorical]
        fields += [pa.field(name, pa.list_(pa.int64())) for name in self.lists]
        return pa.schema(fields)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Schema:
        """Reads the schema of a prepared folder.

        Raises:
          FileNotFoundError: the folder was not prepared by this version of data.py.
        """
        if not is_prepared(folder):
            raise FileNotFoundError(f"{folder} holds no {_FILE_NAME} of this version: prepare the data with data.py")
        values = json.loads((Path(folder) / _FILE_NAME).read_text())
        del values["version"]
        return cls(**{**values, "numeric": tuple(values["numeric"])})

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the schema into the folder, which is complete from then on."""
        values = {"version": _VERSION, **dataclasses.asdict(self)}
        (Path(folder) / _FILE_NAME).write_text(json.dumps(values, indent=1) + "\n")


def is_prepared(folder: str | os.PathLike) -> bool:
    """Returns whether the folder has a complete data set of this version."""
    path = Path(folder) / _FILE_NAME
    return path.is_file() and json.loads(path.read_text()).get("version") == _VERSION


def files(folder: str | os.PathLike, split: str) -> list[str]:
    """Returns the Parquet files of a split, in order."""
    found = sorted(str(path) for path in (Path(folder) / split).glob("*.parquet"))
    if not found:
        raise FileNotFoundError(f"{folder}: no Parquet file in {split}/")
    return found


def write_folder(out: str | os.PathLike, fill: Callable[[Path], Schema]) -> Schema:
    """Makes a data set in a temporary folder and renames it when complete, so that an interrupted run leaves none.

    Args:
      out: the folder to make or to replace.
      fill: writes the splits into the given folder, and returns their schema.
    """
    out = Path(out)
    aside = out.with_name(f"{out.name}.partial-{os.getpid()}")
    aside.mkdir(parents=True)
    try:
        schema = fill(aside)
        schema.save(aside)
        shutil.rmtree(out, ignore_errors=True)
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return schema


class SplitWriter:
    """A writer of one split from columns of any length: files of about `file_rows` rows, in whole row groups."""

    def __init__(self, folder: Path, split: str, schema: Schema, file_rows: int):
        self._folder = Path(folder) / split
        self._folder.mkdir()
        self._arrow = schema.arrow()
        self._group = schema.row_group_rows
        self._file_rows = max(1, round(file_rows / self._group)) * self._group
        self._pending = self._arrow.empty_table()
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_file = 0
        self._files = 0

    def write(self, columns: dict) -> None:
        """Appends rows: one array of equal length for each column of the schema."""
        table = pa.table({name: columns[name] for name in self._arrow.names}, schema=self._arrow)
        self._pending = pa.concat_tables([self._pending, table]).combine_chunks()
        while self._pending.num_rows >= self._group:
            room = self._file_rows - self._rows_in_file
            whole = min(self._pending.num_rows // self._group * self._group, room)
            self._put(self._pending.slice(0, whole))
            self._pending = self._pending.slice(whole)

    def _put(self, table: pa.Table) -> None:
        if self._writer is None:
            path = self._folder / f"part-{self._files:05d}.parquet"
            self._writer = pq.ParquetWriter(path, self._arrow, compression="zstd", write_page_checksum=True)
            self._files += 1
        self._writer.write_table(table, row_group_size=self._group)
        self._rows_in_file += table.num_rows
        if self._rows_in_file == self._file_rows:
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._rows_in_file = None, 0

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, exception, *_) -> None:
        if exception is None and (self._pending.num_rows or not self._files):
            self._put(self._pending)
        self._close_file()
