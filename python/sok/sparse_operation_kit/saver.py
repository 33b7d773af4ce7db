"""Files of tables of SOK 1.x."""

from sparse_operation_kit.version_1 import Saver

__all__ = ["Saver"]
