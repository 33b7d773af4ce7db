"""`hb.metrics`: names of HybridBackend's metrics."""

from lockstep.metrics import accuracy, auc, gauc, mean

__all__ = ["accuracy", "auc", "gauc", "mean"]
