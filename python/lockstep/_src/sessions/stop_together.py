"""Stops all workers after the same step if a hook of any worker requests a stop.

A hook ends training with `run_context.request_stop()`. By itself, this ends one worker's session, and the others would
wait for this worker in the next step's exchanges. Therefore another hook comes after all others. After every step it
asks whether hooks of any worker have requested a stop; if so, all workers stop there. A job then takes exactly as many
steps as one worker would.

The question costs one exchange of a number in a run of its own. A session needs no such hook if all its hooks are known
to request a stop on all workers alike, or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.collectives import agreement, ordered
from lockstep._src.engine.context import context

_tf1 = tf.compat.v1

# TensorFlow's own hooks that never request a stop, and `StopAtStepHook`, which decides by the step and thus on all
# workers alike. `NanTensorHook` is not among them: it requests a stop if its own worker's loss is NaN.
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
    """Returns whether a hook might request a stop on this worker but not on the others.

    The result is false for hooks whose attribute `stops_alike` is true, such as this library's, and for the ones of
    TensorFlow's hooks that are listed in `_ALIKE`.
    """
    return not (getattr(hook, "stops_alike", False) or type(hook) in _ALIKE)


def stop_together(hooks: Sequence[Any]) -> list[Any]:
    """Returns a session's hooks, plus a last one that stops all workers when any worker's hook requests it.

    All workers call it together.

    Args:
      hooks: the hooks of this worker; they may differ between workers.
    """
    hooks = list(hooks)
    if context.world_size > 1 and agreement.any_worker(any(map(may_stop_alone, hooks)), "may_stop_alone"):
        hooks.append(StopTogetherHook())
    return hooks


class StopTogetherHook(tf.compat.v1.train.SessionRunHook):
    """The last hook of a session on every worker: requests a stop if any worker's hooks have requested one."""

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
