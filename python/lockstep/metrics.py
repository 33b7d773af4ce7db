"""Metrics over the data of all workers."""

from lockstep._src.metrics import accuracy, auc

__all__ = ["accuracy", "auc"]
