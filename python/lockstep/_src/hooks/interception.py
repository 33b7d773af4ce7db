"""Replacing attributes of TensorFlow for as long as a scope is open, and putting them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_MISSING = object()


class Interception:
    """A set of replaced attributes that is undone in reverse order.

    Only what a class or module holds itself is replaced and restored: an attribute that a subclass inherits is deleted
    again, not copied down. Not thread-safe: users hold a lock.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets `owner.name` to `make(the present value)`.

        Args:
          owner: a class or module.
          name: the attribute. It exists, on the owner or on a base of it.
          make: gets the present value and returns what takes its place.
        """
        own = vars(owner).get(name, _MISSING)
        setattr(owner, name, make(getattr(owner, name)))
        self.on_undo(lambda: delattr(owner, name) if own is _MISSING else setattr(owner, name, own))

    def replace_alike(self, owners: Iterable[Any], name: str, make: Callable[[Any], Any]) -> None:
        """Replaces a function that several owners hold by one `make(...)` of the first one's."""
        owners = [owner for owner in dict.fromkeys(owners) if hasattr(owner, name)]
        made = make(getattr(owners[0], name))
        for owner in owners:
            self.replace(owner, name, lambda _: made)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Has `action()` called when this place is reached in the undoing."""
        self._undo.append(action)

    def undo(self) -> None:
        """Puts back everything that was replaced. Called twice, the second does nothing."""
        while self._undo:
            self._undo.pop()()
