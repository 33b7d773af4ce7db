"""Input of a job: datasets of Parquet and ORC files, each worker with its own share (docs/input.md)."""

from lockstep._src.data.fields import Field
from lockstep._src.data.frames import DataFrame, deduplicate, parse, populate_defaults, unbatch_and_to_sparse
from lockstep._src.data.iterators import (
    Iterator,
    SyncReplicasDataset,
    make_initializable_iterator,
    make_iterator,
    make_one_shot_iterator,
)
from lockstep._src.data.parquet import ParquetDataset
from lockstep._src.data.rebatch import RebatchDataset, rebatch
from lockstep._src.data.sharing import shard
from lockstep._src.data.tabular import FrameDataset, TabularDataset, read_parquet
from lockstep._src.data.validate import main as validate

__all__ = [
    "DataFrame",
    "Field",
    "FrameDataset",
    "Iterator",
    "ParquetDataset",
    "RebatchDataset",
    "SyncReplicasDataset",
    "TabularDataset",
    "deduplicate",
    "make_initializable_iterator",
    "make_iterator",
    "make_one_shot_iterator",
    "parse",
    "populate_defaults",
    "read_parquet",
    "rebatch",
    "shard",
    "unbatch_and_to_sparse",
    "validate",
]
