"""`hb.pipeline`: names of HybridBackend's pipelines."""

from lockstep.pipeline import compute_pipeline

__all__ = ["compute_pipeline"]
