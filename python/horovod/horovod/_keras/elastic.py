"""Elastic programs of Keras, for whichever `keras` they are asked (docs/horovod_elastic.md)."""

from horovod.tensorflow.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from lockstep._src.compat.horovod.keras.elastic import KerasState

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "KerasState", "ObjectState", "State", "run"]
