"""The layer over a table with a fixed vocabulary."""

from sparse_operation_kit.version_1 import TFDistributedEmbedding

__all__ = ["TFDistributedEmbedding"]
