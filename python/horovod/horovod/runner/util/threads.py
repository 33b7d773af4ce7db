"""Threads, as Horovod's programs start them."""

from lockstep._src.compat.horovod.helpers import in_thread

__all__ = ["in_thread"]
