"""Lookups that DeepRec has in `tf.nn`."""

from lockstep.embedding import group_embedding_lookup, group_embedding_lookup_sparse

__all__ = ["group_embedding_lookup", "group_embedding_lookup_sparse"]
