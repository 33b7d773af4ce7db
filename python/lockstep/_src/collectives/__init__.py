"""Collectives on tensors in two lanes, the ordered one and the one that matches by name; agreements of the workers."""

from lockstep._src.collectives import named_gradients  # noqa: F401  registers the gradients of the named lane
