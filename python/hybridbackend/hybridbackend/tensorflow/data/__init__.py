"""`hb.data`: names of HybridBackend's input API."""

from lockstep.data import (
    DataFrame,
    Iterator,
    RebatchDataset,
    SyncReplicasDataset,
    deduplicate,
    make_initializable_iterator,
    make_iterator,
    make_one_shot_iterator,
    parse,
    populate_defaults,
    read_parquet,
    rebatch,
    shard,
    unbatch_and_to_sparse,
)
from lockstep.data import FrameDataset as ParquetDataset
from lockstep.data import TabularDataset as Dataset

__all__ = [
    "DataFrame",
    "Dataset",
    "Iterator",
    "ParquetDataset",
    "RebatchDataset",
    "SyncReplicasDataset",
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
]
