"""News of hosts, as a process of an elastic job gets them."""

from lockstep._src.compat.horovod.elastic.notifications import HostUpdateResult

__all__ = ["HostUpdateResult"]
