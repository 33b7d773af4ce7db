"""Elastic programs of Keras, for whichever `keras` they are asked (docs/horovod_elastic.md)."""

from types import ModuleType
from typing import Any

from horovod._keras.callbacks import callback_classes
from horovod.tensorflow.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from lockstep._src.compat.horovod.keras.elastic import CommitState, KerasState, UpdateBatchState, UpdateEpochState

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "KerasState", "ObjectState", "State", "run"]

_CALLBACKS = {
    "CommitStateCallback": CommitState,
    "UpdateBatchStateCallback": UpdateBatchState,
    "UpdateEpochStateCallback": UpdateEpochState,
}


def elastic_callback_classes(keras: ModuleType, module: str) -> list[type[Any]]:
    """Returns the callbacks that commit, count batches and count epochs, in this order, as classes of a module."""
    return callback_classes(keras, module, _CALLBACKS)
