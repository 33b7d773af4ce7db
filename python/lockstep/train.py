"""Training on all workers of a job: the scope, evaluation along with it, and what is exported of it."""

from lockstep._src.evaluation import EvaluationHook
from lockstep._src.export import export
from lockstep._src.scope import embedding_scope, scope
from lockstep._src.session_config import get_session_config, wraps_session_config

__all__ = ["EvaluationHook", "embedding_scope", "export", "get_session_config", "scope", "wraps_session_config"]
