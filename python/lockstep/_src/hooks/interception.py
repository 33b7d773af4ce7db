"""Replacing attributes of TensorFlow and Keras, and putting them back.

Several may replace one attribute: each is a layer over those before. A layer may be taken away from below others, which
are then made again over what is left: by a scope that ends while a dynamic table is in use, for instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lockstep._src.hooks.hook import Hook, Period

_MISSING = object()

# Guards the attributes and the layers. Held while one layer is put on or taken away.
_lock = threading.RLock()
_layers: list[_Layer] = []  # the layers of all attributes, oldest first; guarded by _lock


class _Layer:
    """A replacement of one object, in all its places.

    Args:
      places: owners, which are classes or modules, and the attribute's name in each. The first holds what is replaced.
      make: gets the present value, and returns the value that takes its place.
    """

    def __init__(self, places: list[tuple[Any, str]], make: Callable[[Any], Any]) -> None:
        self.places = places
        self._make = make
        self._before: list[Any] = []

    def put_on(self) -> None:
        """Replaces the object by what is made of it."""
        made = self._make(getattr(*self.places[0], None))
        # Only what an owner holds itself: an attribute that a subclass inherits is deleted again, not copied down.
        self._before = [vars(owner).get(name, _MISSING) for owner, name in self.places]
        for owner, name in self.places:
            setattr(owner, name, made)

    def take_off(self) -> None:
        """Puts back what was there when the layer was put on."""
        for (owner, name), before in zip(self.places, self._before, strict=True):
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def overlaps(self, other: _Layer) -> bool:
        """Returns whether both have a place in common."""
        return any(owner is theirs and name == its for owner, name in self.places for theirs, its in other.places)


def _remove(layer: _Layer) -> None:
    """Takes a layer away, also from below others."""
    with _lock:
        position = _layers.index(layer)
        above = [other for other in _layers[position + 1 :] if other.overlaps(layer)]
        for other in reversed([layer, *above]):
            other.take_off()
        del _layers[position]
        for other in above:
            other.put_on()


def is_replaced(owner: Any, name: str) -> bool:
    """Returns whether an attribute is replaced at present."""
    with _lock:
        return any(owner is theirs and name == its for layer in _layers for theirs, its in layer.places)


class Interception:
    """The symbols that are replaced for one purpose, which are restored together, in reverse order.

    Usable in a `with` statement, whose end restores them.

    Args:
      period: the period for which the table has to list each replaced symbol.
    """

    def __init__(self, period: Period) -> None:
        self._period = period
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Interception:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.undo()

    def replace(self, hook: Hook, make: Callable[[Any], Any]) -> None:
        """Replaces a symbol in all its places.

        Args:
          hook: a row of the table.
          make: gets the present value, and returns the value that takes its place.

        Raises:
          HookError: the symbol does not exist, or has another signature than the row says.
          ValueError: the row does not list the period of this interception.
        """
        if self._period not in hook.why:
            raise ValueError(f"{hook.symbol}: the table does not list the period '{self._period.name}'")
        if hook.optional and not hook.exists():
            return
        places = hook.places()
        with _lock:
            if not is_replaced(*places[0]):
                hook.check()
            self._put_on(places, make)
            if hook.subclasses:
                for cls in all_subclasses(places[0][0]):
                    if hook.name in vars(cls):
                        self.replace_attribute(cls, hook.name, make)

    def replace_attribute(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces an attribute of a class that is no row of the table: of a program's own subclass.

        Args:
          owner: a class.
          name: the attribute. It exists, on the owner or on a base of it.
          make: gets the present value, and returns the value that takes its place.
        """
        getattr(owner, name)
        self._put_on([(owner, name)], make)

    def _put_on(self, places: list[tuple[Any, str]], make: Callable[[Any], Any]) -> None:
        layer = _Layer(places, make)
        with _lock:
            layer.put_on()
            _layers.append(layer)
        self.on_undo(lambda: _remove(layer))

    def on_undo(self, action: Callable[[], None]) -> None:
        """Has `action()` called when this place is reached in the undoing."""
        self._undo.append(action)

    def undo(self) -> None:
        """Restores all symbols that were replaced. Called twice, the second does nothing."""
        while self._undo:
            self._undo.pop()()


def all_subclasses(cls: type) -> list[type]:
    """Returns all classes below `cls`, at any depth."""
    direct = cls.__subclasses__()
    return direct + [sub for d in direct for sub in all_subclasses(d)]
