"""`hb.train`: names of HybridBackend's training API; optimizers keep TensorFlow's names (`hb.train.AdamOptimizer`)."""

from lockstep import train as _train
from lockstep.train import (
    BestCheckpoint,
    EarlyStopping,
    EvaluationHook,
    EvaluationSpec,
    IncrementalSaver,
    MonitoredTrainingSession,
    Policy,
    Saver,
    Server,
    StepStatHook,
    SyncReplicasOptimizer,
    __getattr__,
    device_setter,
    export,
    export_all,
    monitored_session,
    replace_default_saver,
    target,
    wraps_monitored_training_session,
    wraps_optimizer,
    wraps_server,
)

__all__ = [
    "BestCheckpoint",
    "EarlyStopping",
    "EvaluationHook",
    "EvaluationSpec",
    "IncrementalSaver",
    "MonitoredTrainingSession",
    "Policy",
    "Saver",
    "Server",
    "StepStatHook",
    "SyncReplicasOptimizer",
    "__getattr__",
    "device_setter",
    "export",
    "export_all",
    "monitored_session",
    "replace_default_saver",
    "target",
    "wraps_monitored_training_session",
    "wraps_optimizer",
    "wraps_server",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(_train) if name.endswith("Optimizer"))} - {"__getattr__"})
