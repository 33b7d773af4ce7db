"""Elastic programs of Keras, for any package of Keras (docs/horovod_elastic.md)."""

from horovod.tensorflow.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from lockstep._src.compat.horovod.keras.elastic import KerasState

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "KerasState", "ObjectState", "State", "run"]
