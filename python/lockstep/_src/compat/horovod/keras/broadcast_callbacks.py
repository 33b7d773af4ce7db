"""One rank's weights and optimizer variables for all ranks, when training begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lockstep._src.compat.horovod.keras.base import KerasCallback
from lockstep._src.compat.horovod.keras.values import evaluate
from lockstep._src.compat.horovod.variables import broadcast_global_variables, broadcast_variables


class BroadcastGlobalVariables(KerasCallback):
    """Gives all ranks the weights and the optimizer's variables of one rank, after the first batch.

    All ranks then begin alike, with random weights or a checkpoint's weights.

    Args:
      root_rank: the rank whose values they get.
      device: where they are broadcast.
      local_variables: a variable or several, that keep their values on each rank, as do the optimizer's slots for
        them.

    Raises:
      ValueError: a local variable is none.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        is_one = hasattr(local_variables, "assign")
        self._local: list[Any] = [local_variables] if is_one else list(local_variables or ())
        if not all(hasattr(v, "assign") for v in self._local):
            raise ValueError("All local variables must be of tf.Variable type.")

    def register_local_var(self, var: Any) -> None:
        """Keeps this rank's values of a variable, and of the optimizer's slots for it."""
        self._local.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch, when optimizers have created their variables."""
        if self.broadcast_done:
            return
        with tf.device(self.device):
            if tf.executing_eagerly():
                self._broadcast()
            else:
                evaluate(broadcast_global_variables(self.root_rank))
        self.broadcast_done = True

    def _broadcast(self) -> None:
        local = {id(_plain(v)) for v in self._local}
        # Keras 3 counts seeds among `variables`; each rank has its own.
        shared = [v for v in self.model.weights if id(_plain(v)) not in local]
        broadcast_variables([_plain(v) for v in shared], self.root_rank)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:
            return
        slots = _optimizer_variables(optimizer)
        own = _slots_of(self._local, _trained_by(optimizer, self.model), slots) if self._local else set()
        broadcast_variables([_plain(v) for v in slots if id(v) not in own], self.root_rank)


def _plain(variable: Any) -> Any:
    """Returns TensorFlow's variable."""
    return getattr(variable, "_value", variable)


def _optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns all variables of an optimizer.

    A LossScaleOptimizer's include the scale, which Keras 2 doesn't count among them.
    """
    variables = optimizer.variables
    scale: Any = getattr(optimizer, "_loss_scale", None)
    scales = [scale._current_loss_scale, scale._counter] if hasattr(scale, "_current_loss_scale") else []
    return [*(variables() if callable(variables) else variables), *scales]


def _name_in_slots(variable: Any) -> str:
    """Returns the part of a slot's name that stands for its variable."""
    return str(getattr(variable, "path", variable.name)).split(":")[0].replace("/", "_")


def _trained_by(optimizer: Any, model: Any) -> list[Any]:
    """Returns the variables that an optimizer has slots for, in their order."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(optimizer, "_trainable_variables", None) or model.trainable_variables)


def _slots_of(local: Sequence[Any], trained: Sequence[Any], slots: Sequence[Any]) -> set[int]:
    """Returns ids of the slots that belong to local variables.

    Args:
      local: the local variables.
      trained: all variables that have slots.
      slots: the optimizer's variables.

    Raises:
      ValueError: a local variable has the name of another one, and their slots cannot be told apart.
    """
    are_local: dict[str, list[bool]] = {}
    own = {id(_plain(v)) for v in local}
    for variable in trained:
        are_local.setdefault(_name_in_slots(variable), []).append(id(_plain(variable)) in own)
    found: set[int] = set()
    alike: dict[tuple[str, str], list[Any]] = {}
    for slot in slots:
        # Keras 3: weight_slot; Keras 2: optimizer/slot/weight, or, of legacy ones, optimizer/weight/slot.
        words = f"_{_name_in_slots(slot)}_"
        # A name may end with another weight's name: the longer one is meant.
        matches = [name for name in are_local if f"_{name}_" in words]
        if matches:
            alike.setdefault((max(matches, key=len), words), []).append(slot)
    # Slots of variables with the same name have the same name too, and the order of their variables.
    for (name, _), slots_alike in alike.items():
        flags = are_local[name]
        if any(flags) and not all(flags) and len(slots_alike) != len(flags):
            raise ValueError(
                f"BroadcastGlobalVariablesCallback: {len(flags)} variables are named {name}; some of them are local, "
                f"and {len(slots_alike)} variables of the optimizer belong to them; give them different names"
            )
        found.update(id(slot) for i, slot in enumerate(slots_alike) if flags[i % len(flags)])
    return found
