"""Elastic programs of Keras: `hvd.elastic` of `import horovod.tensorflow.keras as hvd`.

docs/horovod_elastic.md is the manual.
"""

from tensorflow import keras

from horovod._keras.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    KerasState,
    ObjectState,
    State,
    elastic_callback_classes,
    run,
)

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

CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback = elastic_callback_classes(keras, __name__)
