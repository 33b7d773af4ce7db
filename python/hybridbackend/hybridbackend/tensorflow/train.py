"""`hb.train`: names of HybridBackend's training API."""

from lockstep.train import EvaluationHook, export

__all__ = ["EvaluationHook", "export"]
