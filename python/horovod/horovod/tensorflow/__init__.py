"""Horovod's API for TensorFlow: `import horovod.tensorflow as hvd`.

Runs on TensorFlow 2.15 and later, eagerly, in `tf.function` and in graphs of TensorFlow 1. docs/horovod.md is the
manual.
"""

from horovod.tensorflow import mpi_ops, util
from horovod.tensorflow.collectives import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.mpi_ops import *  # noqa: F403
from horovod.tensorflow.optimizers import DistributedOptimizer
from horovod.tensorflow.tapes import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.util import _executing_eagerly
from lockstep._src.compat.lazy import lazy_names

__all__ = [
    *mpi_ops.__all__,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "_executing_eagerly",
    "allgather_object",
    "allreduce",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "grouped_allreduce",
    "grouped_reducescatter",
    "mpi_ops",
    "reducescatter",
    "util",
]

# Loaded when a program asks for them, because they load Keras or are only for elastic jobs.
_LAZY = {"SyncBatchNormalization": "horovod.tensorflow.sync_batch_norm", "elastic": "horovod.tensorflow.elastic"}
__getattr__, __dir__ = lazy_names(__name__, _LAZY)
