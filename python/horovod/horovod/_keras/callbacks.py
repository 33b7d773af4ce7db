"""Callbacks of Keras for jobs of several ranks, for whichever `keras` they are asked."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from lockstep._src.compat.horovod.keras.callbacks import BestModelCheckpoint, MetricAverage
from lockstep._src.compat.horovod.keras.initial_values import BroadcastGlobalVariables
from lockstep._src.compat.horovod.keras.learning_rates import LearningRateSchedule, LearningRateWarmup

__all__ = ["BestModelCheckpoint", "callback_classes", "make_callback"]

_CALLBACKS = {
    "BroadcastGlobalVariablesCallback": BroadcastGlobalVariables,
    "MetricAverageCallback": MetricAverage,
    "LearningRateScheduleCallback": LearningRateSchedule,
    "LearningRateWarmupCallback": LearningRateWarmup,
}


def make_callback(name: str, implementation: type, keras: ModuleType, module: str) -> type[Any]:
    """Returns a callback of `keras`, as a class of a module, with the implementation's methods and docstring."""
    namespace = {"__module__": module, "__doc__": implementation.__doc__}
    return type(name, (implementation, keras.callbacks.Callback), namespace)


def callback_classes(keras: ModuleType, module: str) -> tuple[type[Any], ...]:
    """Returns the callbacks for broadcasts, metrics, schedules and warm-up, in this order, as classes of a module."""
    return tuple(make_callback(name, implementation, keras, module) for name, implementation in _CALLBACKS.items())
