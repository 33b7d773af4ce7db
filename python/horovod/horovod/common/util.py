"""Helpers that programs and Horovod's own tests import from here."""

from lockstep._src.compat.horovod.helpers import (
    EXTENSIONS,
    env,
    extension_available,
    get_average_backwards_compatibility_fun,
    gpu_available,
    is_iterable,
    is_version_greater_equal_than,
    nccl_version,
    num_rank_is_power_2,
    split_list,
)
from lockstep._src.compat.horovod.helpers import cache as _cache

__all__ = [
    "EXTENSIONS",
    "_cache",
    "ccl_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]


def mpi_built(verbose: bool = False) -> bool:
    """Returns False: there is no MPI, and none is needed."""
    return False


def gloo_built(verbose: bool = False) -> bool:
    """Returns True: processes find each other without MPI. Programs ask about that under Gloo's name."""
    return True


def nccl_built(verbose: bool = False) -> bool:
    """Returns whether NCCL exchanges tensors on this worker's GPU."""
    return nccl_version() > 0


def ddl_built(verbose: bool = False) -> bool:
    """Returns False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Returns False."""
    return False
