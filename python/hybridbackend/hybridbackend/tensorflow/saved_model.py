"""`hb.saved_model`: names of HybridBackend's first generation."""

from lockstep.train import export

__all__ = ["export"]
