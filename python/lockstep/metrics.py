"""Metrics over the data of all workers."""

from lockstep._src.evaluation.metrics import accuracy, auc, gauc, mean

__all__ = ["accuracy", "auc", "gauc", "mean"]
