"""`hb`: HybridBackend's API for TensorFlow (docs/hybridbackend.md). Names alone; what they do is Lockstep's."""

from hybridbackend.tensorflow import data, distribute, metrics, pipeline, saved_model, train
from lockstep import Context, context
from lockstep.train import embedding_scope, get_session_config, scope, wraps, wraps_session_config

# As a decorator of the function that builds the model: `@hb.function(grad_nbuckets=2)`.
function = scope

__all__ = [
    "Context",
    "context",
    "data",
    "distribute",
    "embedding_scope",
    "function",
    "get_session_config",
    "metrics",
    "pipeline",
    "saved_model",
    "scope",
    "train",
    "wraps",
    "wraps_session_config",
]
