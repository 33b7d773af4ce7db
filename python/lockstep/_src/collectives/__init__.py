"""Collectives on tensors in two lanes, the ordered and the named one; agreements between workers."""

from lockstep._src.collectives import transposes  # noqa: F401  registers the gradients of collectives
