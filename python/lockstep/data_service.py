"""A job of TensorFlow's tf.data service beside a training job (docs/horovod_data_service.md)."""

from lockstep._src.data_service.client import ComputeClient
from lockstep._src.data_service.command import run as run_command
from lockstep._src.data_service.compute import main, run_worker
from lockstep._src.data_service.config import TfDataServiceConfig
from lockstep._src.data_service.errors import (
    ComputeJobError,
    DataServiceError,
    TimeoutException,
    UnreachableError,
    WrongKeyError,
)
from lockstep._src.data_service.messages import new_key
from lockstep._src.data_service.place import own_place
from lockstep._src.data_service.service import ComputeService
from lockstep._src.data_service.training import send_to_data_service, tf_data_service

__all__ = [
    "ComputeClient",
    "ComputeJobError",
    "ComputeService",
    "DataServiceError",
    "TfDataServiceConfig",
    "TimeoutException",
    "UnreachableError",
    "WrongKeyError",
    "main",
    "new_key",
    "own_place",
    "run_command",
    "run_worker",
    "send_to_data_service",
    "tf_data_service",
]
