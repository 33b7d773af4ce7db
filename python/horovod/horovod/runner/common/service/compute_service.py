"""The registry of a data service: who runs it, and who asks it."""

from lockstep.data_service import ComputeClient, ComputeService

__all__ = ["ComputeClient", "ComputeService"]
