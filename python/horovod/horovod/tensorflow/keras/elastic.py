"""Elastic programs of tf.keras: `hvd.elastic` of `import horovod.tensorflow.keras as hvd`.

docs/horovod_elastic.md is the manual.
"""

from __future__ import annotations

import tensorflow as tf

from horovod._keras import elastic as _impl
from horovod._keras.elastic import KerasState
from horovod.tensorflow.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class CommitStateCallback(_impl.CommitStateCallbackImpl, tf.keras.callbacks.Callback):
    """Commits `state` after each `batches_per_commit` batches, and after each epoch."""


class UpdateBatchStateCallback(_impl.UpdateBatchStateCallbackImpl, tf.keras.callbacks.Callback):
    """Keeps in `state.batch` how many batches of the epoch are done; one that was begun before ends earlier."""


class UpdateEpochStateCallback(_impl.UpdateEpochStateCallbackImpl, tf.keras.callbacks.Callback):
    """Keeps in `state.epoch` how many epochs are done, those before a change of the job among them."""
