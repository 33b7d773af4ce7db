"""Names of TensorFlow under which SOK 1.x had variants of them."""

from lockstep._src.compat.lazy import lazy_names
from sparse_operation_kit.operations import unique, unsorted_segment_sum

__all__ = ["unique", "unsorted_segment_sum"]

__getattr__, __dir__ = lazy_names(__name__, {"keras": "sparse_operation_kit.tf.keras"})
