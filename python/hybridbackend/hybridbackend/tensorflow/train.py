"""`hb.train`: names of HybridBackend's training API."""

from lockstep.train import (
    BestCheckpoint,
    EarlyStopping,
    EvaluationHook,
    EvaluationSpec,
    Policy,
    StepStatHook,
    export,
    export_all,
)

__all__ = [
    "BestCheckpoint",
    "EarlyStopping",
    "EvaluationHook",
    "EvaluationSpec",
    "Policy",
    "StepStatHook",
    "export",
    "export_all",
]
