"""Pooled lookups: the rows of each example's ids are combined into one. For tables of this library this is fused."""

from lockstep._src.tables.pooling.dispatch import intercept_pooling
from lockstep._src.tables.pooling.fused import COMBINERS
from lockstep._src.tables.pooling.lookups import lookup_pooled, lookup_valid
from lockstep._src.tables.pooling.replicated import fusing

__all__ = ["COMBINERS", "fusing", "intercept_pooling", "lookup_pooled", "lookup_valid"]
