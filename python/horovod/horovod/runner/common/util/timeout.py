"""The error of a service that waited too long for a process."""

from lockstep.data_service import TimeoutException

__all__ = ["TimeoutException"]
