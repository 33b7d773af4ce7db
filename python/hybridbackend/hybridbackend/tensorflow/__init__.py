"""`hb`: HybridBackend's API for TensorFlow (docs/hybridbackend.md), as names of Lockstep's objects."""

from hybridbackend.tensorflow import (
    data,
    distribute,
    embedding,
    estimator,
    keras,
    metrics,
    pipeline,
    saved_model,
    train,
)
from hybridbackend.tensorflow.optimization import disable_optimization, enable_optimization
from lockstep import Context, buildinfo, context
from lockstep.train import embedding_scope, get_session_config, scope, wraps, wraps_session_config

# As a decorator of the function that builds the model: `@hb.function(grad_nbuckets=2)`.
function = scope

__version__ = buildinfo()

__all__ = [
    "Context",
    "buildinfo",
    "context",
    "data",
    "disable_optimization",
    "distribute",
    "embedding",
    "embedding_scope",
    "enable_optimization",
    "estimator",
    "function",
    "get_session_config",
    "keras",
    "metrics",
    "pipeline",
    "saved_model",
    "scope",
    "train",
    "wraps",
    "wraps_session_config",
]
