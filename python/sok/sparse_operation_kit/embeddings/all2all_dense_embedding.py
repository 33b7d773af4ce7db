"""The layer that returns a row for each key."""

from sparse_operation_kit.version_1 import All2AllDenseEmbedding

__all__ = ["All2AllDenseEmbedding"]
