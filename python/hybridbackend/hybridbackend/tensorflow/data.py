"""`hb.data`: names of HybridBackend's input API."""

from lockstep.data import DataFrame, ParquetDataset

__all__ = ["DataFrame", "ParquetDataset"]
