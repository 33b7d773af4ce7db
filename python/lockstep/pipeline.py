"""Steps of several batches."""

from lockstep._src.pipeline import compute_pipeline

__all__ = ["compute_pipeline"]
