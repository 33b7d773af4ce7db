"""HybridBackend's switches of its graph optimizations, which there is nothing to switch for."""


def enable_optimization(logging_level: int | None = None, relocate_ops: bool = False) -> None:
    """Taken without effect: the op library groups and orders collectives always, and TensorFlow places operations."""
    del logging_level, relocate_ops


def disable_optimization() -> None:
    """Taken without effect: the order of collectives, which all workers rely on, cannot be left out."""
