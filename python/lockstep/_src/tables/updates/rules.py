"""The description of an optimizer for an update operation."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Slot:
    """A value that an optimizer keeps for each weight.

    Attributes:
      name: the optimizer's name of the slot.
      initial: the initial value.
    """

    name: str
    initial: float


@dataclasses.dataclass(frozen=True)
class Rule:
    """The description of an optimizer for `LockstepSparseUpdate`.

    Attributes:
      optimizer: the optimizer.
      name: the name of a rule in tf/update/update_rules.h.
      slots: the slots of the rule, in its order.
      hyperparameters: returns numbers or scalar tensors by name, in the rule's order; called when the update is built,
        after the optimizer has prepared them. The operation refuses other names, and another order.
      slot_of: returns a variable's slot of a name, as a variable of TensorFlow.
      all_rows: whether rows without a gradient are updated, too, with a gradient of zero.
    """

    optimizer: Any
    name: str
    slots: tuple[Slot, ...]
    hyperparameters: Callable[[], Mapping[str, Any]]
    slot_of: Callable[[Any, str], Any]
    all_rows: bool = False


def has_method_of(optimizer: Any, cls: type, name: str) -> bool:
    """Returns whether a method of an optimizer is the method of `cls`, neither overridden nor replaced on the object.

    A wrapper made with `functools.wraps` counts as the function that it wraps.
    """
    if name in vars(optimizer):
        return False
    return inspect.unwrap(getattr(type(optimizer), name)) is inspect.unwrap(getattr(cls, name))
