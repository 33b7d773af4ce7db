"""`hb.metrics`: names of HybridBackend's metrics."""

from lockstep.metrics import accuracy, auc

__all__ = ["accuracy", "auc"]
