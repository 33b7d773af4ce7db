"""Steps of several batches."""

from lockstep._src.training.pipeline import compute_pipeline

__all__ = ["compute_pipeline"]
