"""What an update operation has to know of an optimizer."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Slot:
    """What an optimizer keeps of each weight.

    Attributes:
      name: the optimizer's own for it.
      initial: the value that it begins with.
    """

    name: str
    initial: float


@dataclasses.dataclass(frozen=True)
class Rule:
    """An optimizer as `LockstepSparseUpdate` takes it.

    Attributes:
      optimizer: whose rule it is.
      name: of a rule in tf/embedding/update_rules.h.
      slots: those of the rule, in its order.
      hyperparameters: gives numbers or scalar tensors, in the rule's order; called where the update is built, after the
        optimizer has prepared them.
      slot_of: gives a variable's slot, a variable of TensorFlow, by its name.
      all_rows: whether rows without a gradient are updated as well, with one of zero.
    """

    optimizer: Any
    name: str
    slots: tuple[Slot, ...]
    hyperparameters: Callable[[], Sequence[Any]]
    slot_of: Callable[[Any, str], Any]
    all_rows: bool = False


def has_method_of(optimizer: Any, cls: type, name: str) -> bool:
    """Whether a method of an optimizer is the one that `cls` has, neither overridden nor replaced on the object.

    Wrappers that keep what they wrap (`functools.wraps`) count as what they wrap.
    """
    if name in vars(optimizer):
        return False
    return inspect.unwrap(getattr(type(optimizer), name)) is inspect.unwrap(getattr(cls, name))
