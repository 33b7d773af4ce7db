"""Training on all workers of a job: the scope, optimizers, sessions, evaluation during training, and exports."""

from typing import Any

from lockstep import _assembly  # noqa: F401
from lockstep._src.compat.deeprec.collective_strategy import CollectiveStrategy
from lockstep._src.compat.hybridbackend.optimizers import names as _names_of_optimizers
from lockstep._src.compat.hybridbackend.optimizers import optimizer as _optimizer
from lockstep._src.compat.hybridbackend.optimizers import wraps, wraps_optimizer
from lockstep._src.compat.hybridbackend.server import (
    Server,
    device_setter,
    monitored_session,
    target,
    wraps_monitored_training_session,
    wraps_server,
)
from lockstep._src.compat.hybridbackend.server import monitored_training_session as MonitoredTrainingSession  # noqa: N812
from lockstep._src.compat.hybridbackend.sync_replicas import SyncReplicasOptimizer
from lockstep._src.evaluation.evaluation_hook import EvaluationHook, EvaluationSpec
from lockstep._src.evaluation.result_policies import BestCheckpoint, EarlyStopping
from lockstep._src.saving.checkpoint import Saver, replace_default_saver
from lockstep._src.saving.incremental import IncrementalSaver
from lockstep._src.saving.saved_models import export, export_all
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.sessions.policies import Policy
from lockstep._src.sessions.session_config import get_session_config, wraps_session_config
from lockstep._src.sessions.stats_hook import StatsHook
from lockstep._src.sessions.step_statistics import StepStatHook

__all__ = [
    "BestCheckpoint",
    "CollectiveStrategy",
    "EarlyStopping",
    "EvaluationHook",
    "EvaluationSpec",
    "MonitoredTrainingSession",
    "IncrementalSaver",
    "Policy",
    "Saver",
    "Server",
    "StatsHook",
    "StepStatHook",
    "SyncReplicasOptimizer",
    "device_setter",
    "embedding_scope",
    "export",
    "export_all",
    "get_session_config",
    "monitored_session",
    "replace_default_saver",
    "scope",
    "target",
    "wraps",
    "wraps_monitored_training_session",
    "wraps_optimizer",
    "wraps_server",
    "wraps_session_config",
]


def __getattr__(name: str) -> Any:
    # The class for an optimizer of tf.compat.v1.train is made at its first use.
    try:
        return _optimizer(name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *_names_of_optimizers()})
