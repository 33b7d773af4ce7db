"""Fused updates: one C++ operation applies an optimizer's step to the rows that sparse gradients name.

Inside a scope, the code of TensorFlow's and Keras' known optimizers for `tf.IndexedSlices` is replaced by
`LockstepSparseUpdate` (tf/update/update_ops.cc). It sums the gradients of each row and applies the optimizer's rule
once. Other optimizers, and subclasses that override the code for such gradients, are not changed.

TensorFlow 1: the rules are in `tensorflow1_rules.py`, the replaced symbols in `tensorflow1_hooks.py`. Keras: the rules
are in `keras_rules.py`, the replaced symbols in `keras3.py` and `keras2.py`. `keras2.py` also has the rules of legacy
optimizers.
"""

from lockstep._src.tables.updates.apply import apply_rule, of_touched_rows
from lockstep._src.tables.updates.dispatch import apply_sparse, rule_of
from lockstep._src.tables.updates.owners import note_restored, slot_names
from lockstep._src.tables.updates.rules import Rule, Slot
from lockstep._src.tables.updates.tensorflow1_hooks import intercept_updates

__all__ = [
    "Rule",
    "Slot",
    "apply_rule",
    "apply_sparse",
    "intercept_updates",
    "note_restored",
    "of_touched_rows",
    "rule_of",
    "slot_names",
]
