"""Input of a job: datasets of Parquet files, each worker with its own share (docs/input.md)."""

from lockstep._src.data.fields import DataFrame, Field
from lockstep._src.data.parquet import ParquetDataset

__all__ = ["DataFrame", "Field", "ParquetDataset"]
