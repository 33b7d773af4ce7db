"""Training that one worker's hook ends, ends on all workers after the same step.

A hook asks for the end by `run_context.request_stop()`. On its own that ends one worker's session, and the others would
wait for it in the next step's exchanges. So a hook that comes after all others asks, after every step, whether any
worker's hooks have; if so, all workers stop there. A job therefore takes as many steps as one worker would.

The question is one exchange of a number in a run of its own. Sessions whose hooks are all known to ask alike on all
workers, or never to, do without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import agreement, ordered
from lockstep._src.engine.context import context

_tf1 = tf.compat.v1

# TensorFlow's own hooks that never ask for the end of training, or, `StopAtStepHook`, by the step, which is the same on
# all workers. `NanTensorHook` asks when its own worker's loss is NaN.
_ALIKE = (
    _tf1.train.CheckpointSaverHook,
    _tf1.train.FeedFnHook,
    _tf1.train.FinalOpsHook,
    _tf1.train.GlobalStepWaiterHook,
    _tf1.train.LoggingTensorHook,
    _tf1.train.ProfilerHook,
    _tf1.train.StepCounterHook,
    _tf1.train.StopAtStepHook,
    _tf1.train.SummarySaverHook,
)


def may_stop_alone(hook: Any) -> bool:
    """Whether a hook might ask for the end of training on this worker and not on the others.

    False for hooks whose attribute `stops_alike` is true, as it is of this library's, and for TensorFlow's own.
    """
    return not (getattr(hook, "stops_alike", False) or type(hook) in _ALIKE)


def stop_together(hooks: Sequence[Any]) -> list[Any]:
    """A session's hooks, with one behind them that ends training on all workers when any worker's hook asks for it.

    All workers call it together.

    Args:
      hooks: those of this worker; others may have others.
    """
    hooks = list(hooks)
    if context.world_size > 1 and agreement.any_worker(any(map(may_stop_alone, hooks)), "may_stop_alone"):
        hooks.append(StopTogetherHook())
    return hooks


class StopTogetherHook(_tf1.train.SessionRunHook):
    """Stops where any worker's hooks have asked for it; the last of a session's hooks, on every worker."""

    stops_alike = True

    def begin(self) -> None:
        with tf.name_scope("stop_together"):
            self._asked = _tf1.placeholder(tf.int32, (), name="asked")
            self._any_asked = ordered.allreduce(self._asked, op="max", name="any_asked")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        asked = int(run_context.stop_requested)
        if run_context.session.run(self._any_asked, {self._asked: asked}):
            run_context.request_stop()
