"""Imports the modules that register themselves with modules of lower layers.

Public modules that need such a registration import this module.

| module | registers | with |
| --- | --- | --- |
| `saving.checkpoint` | savers that know of dynamic tables | `tables.dynamic.tensorflow1_adapter` |
| `evaluation.evaluation_hook` | `EvaluationHook`, for sessions with `eval_fn` | `sessions.session` |
| `keras.models.graph_model` | the `Model` that replaces Keras 2's in graphs of TensorFlow 1 | `scope` |
"""

from lockstep._src.evaluation import evaluation_hook
from lockstep._src.keras.models import graph_model
from lockstep._src.saving import checkpoint

__all__ = ["checkpoint", "evaluation_hook", "graph_model"]
