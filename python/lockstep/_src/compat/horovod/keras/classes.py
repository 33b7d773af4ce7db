"""Classes of callbacks for a module of Horovod's API, for any package of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from lockstep._src.compat.horovod.keras.broadcast_callbacks import BroadcastGlobalVariables
from lockstep._src.compat.horovod.keras.callbacks import BestModelCheckpoint, MetricAverage
from lockstep._src.compat.horovod.keras.elastic import CommitState, UpdateBatchState, UpdateEpochState
from lockstep._src.compat.horovod.keras.learning_rates import LearningRateSchedule, LearningRateWarmup

# Implementations by the classes' names. `horovod.keras` and `horovod.tensorflow.keras` have these classes.
CALLBACKS = {
    "BroadcastGlobalVariablesCallback": BroadcastGlobalVariables,
    "MetricAverageCallback": MetricAverage,
    "LearningRateScheduleCallback": LearningRateSchedule,
    "LearningRateWarmupCallback": LearningRateWarmup,
    "BestModelCheckpoint": BestModelCheckpoint,
}
ELASTIC_CALLBACKS = {
    "CommitStateCallback": CommitState,
    "UpdateBatchStateCallback": UpdateBatchState,
    "UpdateEpochStateCallback": UpdateEpochState,
}


def callback_classes(keras: ModuleType, module: str, implementations: Mapping[str, type]) -> list[type[Any]]:
    """Returns callbacks of `keras` as classes of a module, with the implementations' methods and docstrings.

    Args:
      keras: the Keras whose callbacks they are.
      module: the name of the module.
      implementations: by the classes' names, in the order of the result. The attribute `keras_base`
        of an implementation names the class of `keras.callbacks` that it extends.
    """
    classes = []
    for name, implementation in implementations.items():
        base = getattr(keras.callbacks, getattr(implementation, "keras_base", "Callback"))
        namespace = {"__module__": module, "__doc__": implementation.__doc__}
        classes.append(type(name, (implementation, base), namespace))
    return classes
