"""The place of this process in its job, before anything is initialized."""

from lockstep._src.compat.horovod.helpers import rank_and_size as get_env_rank_and_size

__all__ = ["get_env_rank_and_size"]
