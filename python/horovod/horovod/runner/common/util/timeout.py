"""What a service raises where somebody did not come in time."""

from lockstep.data_service import TimeoutException

__all__ = ["TimeoutException"]
