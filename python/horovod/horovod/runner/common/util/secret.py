"""Keys of services."""

from lockstep.data_service import new_key as make_secret_key

__all__ = ["make_secret_key"]
