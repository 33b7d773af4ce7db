"""Steps of several batches."""

from lockstep._src.data.micro_batches import compute_pipeline

__all__ = ["compute_pipeline"]
