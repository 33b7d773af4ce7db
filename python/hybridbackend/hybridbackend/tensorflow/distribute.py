"""`hb.distribute`: names of HybridBackend's collectives."""

from lockstep.distribute import CollectiveOps as ops
from lockstep.distribute import (
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
