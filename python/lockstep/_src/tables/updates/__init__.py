"""Fused updates: an optimizer's step for the rows that sparse gradients name, as one C++ operation.

Inside a scope, what TensorFlow's and Keras' known optimizers do with `tf.IndexedSlices` is replaced by
`LockstepSparseUpdate` (tf/embedding/update_ops.cc), which sums the gradients of each row and applies the optimizer's
rule once. Other optimizers, and subclasses that do something of their own with such gradients, keep their way.
"""

from lockstep._src.tables.updates.interceptions import intercept_updates
from lockstep._src.tables.updates.known_rules import apply_sparse, rule_of
from lockstep._src.tables.updates.owners import note_restored, slot_names
from lockstep._src.tables.updates.rules import Rule, Slot

__all__ = ["Rule", "Slot", "apply_sparse", "intercept_updates", "note_restored", "rule_of", "slot_names"]
