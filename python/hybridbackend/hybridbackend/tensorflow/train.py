"""`hb.train`: names of HybridBackend's training API. Those of optimizers are TensorFlow's, `hb.train.AdamOptimizer`."""

from lockstep.train import (
    EvaluationHook,
    MonitoredTrainingSession,
    Saver,
    Server,
    __dir__,
    __getattr__,
    device_setter,
    export,
    monitored_session,
    replace_default_saver,
    target,
    wraps_monitored_training_session,
    wraps_optimizer,
    wraps_server,
)

__all__ = [
    "EvaluationHook",
    "MonitoredTrainingSession",
    "Saver",
    "Server",
    "__dir__",
    "__getattr__",
    "device_setter",
    "export",
    "monitored_session",
    "replace_default_saver",
    "target",
    "wraps_monitored_training_session",
    "wraps_optimizer",
    "wraps_server",
]
