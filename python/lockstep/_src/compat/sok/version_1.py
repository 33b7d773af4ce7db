"""The start of a program of SOK 1.x, and what such a program has for itself: its batch, its seed, its named layers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import variable_pb2
from tensorflow.python.framework import ops

from lockstep._src.compat.sok import job, rows, together
from lockstep._src.engine.context import context

_STRATEGIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)


class _Program(NamedTuple):
    """The arguments of `sok.Init`; all ranks have the same."""

    global_batch_size: int
    seed: int | None


_program: _Program | None = None


class GraphKeys:
    """The names of collections in graphs of TensorFlow 1; see `sparse_operation_kit.GraphKeys`."""

    __module__ = "sparse_operation_kit"

    SparseOperationKitEmbeddingLayers = "SparseOperationKitEmbeddingLayers"
    SparseOperationKitOptimizer = "SparseOperationKitOptimizer"


def init(**kwargs: Any) -> tf.Tensor:
    """Starts SOK; see `sparse_operation_kit.Init`."""
    global _program
    if _program is not None:
        raise RuntimeError("sok.Init: got a second call, wanted one call per process")
    # Without the argument this raises KeyError, as the original does.
    batch, seed = kwargs.pop("global_batch_size"), kwargs.pop("seed", None)
    if kwargs:
        warnings.warn(f"sok.Init: unknown options have no effect: {', '.join(sorted(kwargs))}", stacklevel=3)
    if isinstance(batch, bool) or batch != int(batch) or batch < 1:
        raise ValueError(f"sok.Init: global_batch_size is {batch!r}, wanted a number of at least 1")
    ensure_started()
    _program = _agreed(_Program(int(batch), None if seed is None else int(seed)))
    return tf.constant("OK")


def ensure_started() -> None:
    """Chooses the communication, unless the program has: a strategy, Horovod, or a single process."""
    if not job.is_started():
        job.set_comm_tool(_tool())


def _tool() -> str:
    workers = context.world_size
    if tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
        if not isinstance(strategy, _STRATEGIES):
            raise RuntimeError(
                f"sok.Init: This strategy type is not supported yet: got {type(strategy).__name__}, wanted "
                "MirroredStrategy or MultiWorkerMirroredStrategy"
            )
        if strategy.num_replicas_in_sync != workers:
            raise RuntimeError(
                f"sok.Init: the strategy has {strategy.num_replicas_in_sync} replicas and the job {workers} ranks, "
                "wanted one rank for each replica: start the ranks with horovodrun, each with a replica of its own"
            )
    elif "horovod.tensorflow" in sys.modules:
        return "horovod"
    return "horovod" if workers > 1 else "single"


def _agreed(mine: _Program) -> _Program:
    """Returns the arguments that all ranks use: the batch, which must be the same on all, and rank 0's seed."""
    everyone = together.gather_values(list(mine), "sok_init")
    ranks = job.num_ranks()
    batches = [batch for batch, _ in everyone]
    if len(set(batches)) > 1:
        raise ValueError(f"sok.Init: global_batch_size is {batches} on the ranks, wanted one number")
    if mine.global_batch_size % ranks:
        raise ValueError(
            f"sok.Init: global_batch_size is {mine.global_batch_size}, wanted a multiple of {ranks}, the number of "
            "ranks"
        )
    seed = everyone[0][1]
    if mine.seed not in (None, seed):
        tf.compat.v1.logging.warning(
            "sok.Init: rank %d has the seed %s, and rank 0 the seed %s; all ranks use rank 0's seed",
            job.rank(),
            mine.seed,
            seed,
        )
    return _Program(mine.global_batch_size, seed)


def replica_batch_size() -> int:
    """Returns how many examples of a batch belong to each rank.

    Raises:
      RuntimeError: before `sok.Init`.
    """
    if _program is None:
        raise RuntimeError("sok.Init was not called; call it before you create layers, because it sets the batch size")
    return _program.global_batch_size // job.num_ranks()


def seed() -> int | None:
    """Returns the seed of `sok.Init`, if there is one."""
    return None if _program is None else _program.seed


def split(variables: Any) -> tuple[list[Any], list[Any]]:
    """Returns tables and other variables; see `sparse_operation_kit.split_embedding_variable_from_others`."""
    if not isinstance(variables, (list, tuple)):
        raise ValueError(f"Variables must be list or tuple. But got {type(variables)}")
    return rows.filter_variables(variables)


# The collection of a graph that has its named layers, in one dictionary.
_LAYERS = "SparseOperationKitEmbeddingLayerStore"
# This keeps the collections out of a MetaGraph.
for _collection in (_LAYERS, GraphKeys.SparseOperationKitEmbeddingLayers, GraphKeys.SparseOperationKitOptimizer):
    ops.register_proto_function(_collection, proto_type=variable_pb2.VariableDef, to_proto=lambda v, export_scope: None)


def get_embedding(name: str, constructor: Callable[..., Any] | None, kwargs: dict[str, Any]) -> Any:
    """Returns the layer of a name in the current graph, or makes it; see `sparse_operation_kit.get_embedding`."""
    with tf.init_scope():  # a `tf.function` uses the layers of the program
        store = tf.compat.v1.get_collection_ref(_LAYERS)
    if not store:
        store.append({})
    if name not in store[0]:
        if constructor is None:
            raise ValueError(
                f"embedding_layer: '{name}' does not exist and cannot create it with constructor: {constructor}; the "
                f"layers here are {sorted(store[0])}"
            )
        store[0][name] = constructor(**kwargs)
    return store[0][name]
