"""Lookups of many tables at once, as DeepRec has them."""

from lockstep._src.features.group_lookup import group_embedding_lookup, group_embedding_lookup_sparse

__all__ = ["group_embedding_lookup", "group_embedding_lookup_sparse"]
