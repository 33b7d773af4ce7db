"""Collectives and partitions with HybridBackend's arguments."""

from lockstep._src.distribute import (
    CollectiveOps,
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
    "CollectiveOps",
    "Topology",
    "active_size",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "partition",
    "partition_by_dual_modulo_stage_one",
    "partition_by_dual_modulo_stage_two",
    "partition_by_modulo",
]
