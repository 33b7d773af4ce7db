"""A job of TensorFlow's tf.data service beside a training job (docs/horovod_data_service.md)."""

from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.command import run as run_command
from lockstep._src.compat.horovod.data_service.compute import main, run_worker
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import (
    ComputeJobError,
    DataServiceError,
    TimeoutException,
    UnreachableError,
    WrongKeyError,
)
from lockstep._src.compat.horovod.data_service.place import own_place
from lockstep._src.compat.horovod.data_service.reading import add_to_datasets, send_to_data_service, tf_data_service
from lockstep._src.compat.horovod.data_service.registry_messages import new_key
from lockstep._src.compat.horovod.data_service.service import ComputeService

__all__ = [
    "ComputeClient",
    "ComputeJobError",
    "ComputeService",
    "DataServiceError",
    "TfDataServiceConfig",
    "TimeoutException",
    "UnreachableError",
    "WrongKeyError",
    "add_to_datasets",
    "main",
    "new_key",
    "own_place",
    "run_command",
    "run_worker",
    "send_to_data_service",
    "tf_data_service",
]
