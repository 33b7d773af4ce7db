"""Values that DeepRec's programs import from `tensorflow.core.framework.embedding.config_pb2`."""

from lockstep.embedding import CacheStrategy, StorageType

__all__ = ["CacheStrategy", "StorageType"]
