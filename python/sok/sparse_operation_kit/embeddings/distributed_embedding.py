"""The layer that combines the rows of several keys."""

from sparse_operation_kit.version_1 import DistributedEmbedding

__all__ = ["DistributedEmbedding"]
