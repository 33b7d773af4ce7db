"""HybridBackend's switches of its graph optimizations, without effect here."""


def enable_optimization(logging_level: int | None = None, relocate_ops: bool = False) -> None:
    """Does nothing: the op library always groups and orders collectives, and TensorFlow places operations."""
    del logging_level, relocate_ops


def disable_optimization() -> None:
    """Does nothing: all workers rely on the order of collectives, which is always on."""
