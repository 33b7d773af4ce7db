"""The registry of a data service: its server and its client."""

from lockstep.data_service import ComputeClient, ComputeService

__all__ = ["ComputeClient", "ComputeService"]
