"""Training on all workers of a job: the scope, evaluation along with it, and what is exported of it."""

from lockstep._src.evaluation import EvaluationHook, EvaluationSpec
from lockstep._src.evaluation_policies import BestCheckpoint, EarlyStopping
from lockstep._src.export import export, export_all
from lockstep._src.policies import Policy
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.statistics import StepStatHook

__all__ = [
    "BestCheckpoint",
    "EarlyStopping",
    "EvaluationHook",
    "EvaluationSpec",
    "Policy",
    "StepStatHook",
    "embedding_scope",
    "export",
    "export_all",
    "scope",
]
