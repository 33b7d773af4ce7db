"""Fused updates: one C++ operation applies an optimizer's step to the rows that sparse gradients name.

Inside a scope, the code of TensorFlow's and Keras' known optimizers for `tf.IndexedSlices` is replaced by
`LockstepSparseUpdate` (tf/embedding/update_ops.cc). It sums the gradients of each row and applies the optimizer's rule
once. Other optimizers, and subclasses that override the code for such gradients, are not changed.
"""

from lockstep._src.tables.updates.interceptions import intercept_updates
from lockstep._src.tables.updates.known_rules import apply_sparse, rule_of
from lockstep._src.tables.updates.owners import note_restored, slot_names
from lockstep._src.tables.updates.rules import Rule, Slot

__all__ = ["Rule", "Slot", "apply_sparse", "intercept_updates", "note_restored", "rule_of", "slot_names"]
