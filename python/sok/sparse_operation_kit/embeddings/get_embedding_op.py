"""Layers by name."""

from sparse_operation_kit.version_1 import get_embedding

__all__ = ["get_embedding"]
