"""Collectives on tensors in two lanes, the ordered one and the one that matches by name; agreements of the workers."""

from lockstep._src.collectives import transposes  # noqa: F401  registers the gradients of collectives
