"""The ranks of the job and their collectives. Each function raises RuntimeError before `sok.init`.

SOK lets a process have several GPUs. Here it has one, which its rank stands for.
"""

from typing import Any

import tensorflow as tf

from lockstep._src.compat.sok import job

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "check_comm_tool",
    "global_gpu_id",
    "id_in_rank",
    "local_rank",
    "num_gpu_per_rank",
    "num_gpus",
    "num_ranks",
    "rank",
    "set_comm_tool",
]


def set_comm_tool(tool: str) -> None:
    """Chooses the communication; `sok.init` calls it.

    Args:
      tool: "horovod" or "single"; see `sok.init`.

    Raises:
      RuntimeError: a second call.
      ValueError: another tool, or a part of the ranks.
    """
    job.set_comm_tool(tool)


def check_comm_tool() -> None:
    """Raises RuntimeError before `sok.init`."""
    job.check_started()


def rank() -> int:
    """Returns this process's rank, from 0."""
    return job.rank()


def num_ranks() -> int:
    """Returns the number of ranks."""
    return job.num_ranks()


def local_rank() -> int:
    """Returns this process's rank among the ranks of its host, from 0."""
    return job.local_rank()


def id_in_rank() -> int:
    """Returns 0, the number of this GPU in its process."""
    job.check_started()
    return 0


def num_gpu_per_rank() -> int:
    """Returns 1, the number of GPUs of a process."""
    job.check_started()
    return 1


def global_gpu_id() -> int:
    """Returns the rank, which is the number of this GPU in the job."""
    return job.rank()


def num_gpus() -> int:
    """Returns the number of ranks, which equals the number of GPUs."""
    return job.num_ranks()


def alltoall(tensor: Any, splits: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends rows of a tensor to all ranks.

    Args:
      tensor: [n, ...], whose rows for rank 0 are first, then those for rank 1, and so on.
      splits: [ranks] integers, how many rows are for each rank; n in sum.

    Returns:
      The received rows in the order of ranks, and how many came from each, [ranks] int32.
    """
    return job.alltoall(tensor, splits)


def allreduce(tensor: Any, op: Any) -> tf.Tensor:
    """Reduces a tensor over the ranks.

    Args:
      tensor: of the same shape and type on all ranks.
      op: "sum", "average", "max" or "min", or Horovod's value for one of them, such as hvd.Sum.

    Raises:
      ValueError: another op.
    """
    return job.allreduce(tensor, op)


def allgather(tensor: Any) -> tf.Tensor:
    """Returns the rows of all ranks, in the order of ranks.

    Args:
      tensor: [n, ...]; n may differ between ranks.
    """
    return job.allgather(tensor)


def broadcast(tensor: Any, root: int) -> tf.Tensor:
    """Returns the tensor of the rank `root`.

    Args:
      tensor: of the same shape and type on all ranks.
      root: a rank.
    """
    return job.broadcast(tensor, root)
