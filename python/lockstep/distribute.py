"""Collectives and partitions of ids under HybridBackend's names."""

from lockstep._src.compat.hybridbackend.communicators import Collective, RpcCollective
from lockstep._src.compat.hybridbackend.distribute import CollectiveOps as ops
from lockstep._src.compat.hybridbackend.distribute import (
    Topology,
    active_size,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    partition,
    partition_by_dual_modulo_stage_one,
    partition_by_dual_modulo_stage_two,
    partition_by_modulo,
)

__all__ = [
    "Collective",
    "RpcCollective",
    "Topology",
    "active_size",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "ops",
    "partition",
    "partition_by_dual_modulo_stage_one",
    "partition_by_dual_modulo_stage_two",
    "partition_by_modulo",
]
