"""Lockstep: synchronous distributed training of deep recommenders on TensorFlow."""

from lockstep._src.context import Context, context, init, rank, shutdown, size

__all__ = ["Context", "context", "init", "rank", "shutdown", "size"]
