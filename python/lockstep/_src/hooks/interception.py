"""Replaces attributes of TensorFlow and Keras, and restores them.

An attribute may have several replacements; each is a layer over the earlier ones. A layer may be removed from below
others, which are then made again over the remaining ones. This happens, for instance, when a scope ends while a dynamic
table is in use.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from lockstep._src.hooks.hook import Hook, Period

_MISSING = object()

# Guards the attributes and the layers; held while a layer is added or removed.
_lock = threading.RLock()
_numbers = itertools.count()
# The layers of each attribute, oldest first, by the owner's id and the name. Guarded by _lock.
_layers: collections.defaultdict[tuple[int, str], list[_Layer]] = collections.defaultdict(list)


class _Layer:
    """A replacement of one object, in all its places, over the existing layers.

    Args:
      places: owners, which are classes, modules or objects, and the attribute's name in each. The first one has the
        original.
      make: gets the present value, and returns its replacement.
    """

    def __init__(self, places: list[tuple[Any, str]], make: Callable[[Any], Any]) -> None:
        self._places = places
        self._make = make
        with _lock:
            self._number = next(_numbers)
            self._put_on()
            for owner, name in places:
                _layers[id(owner), name].append(self)

    def remove(self) -> None:
        """Removes the layer, also from below others."""
        with _lock:
            stacks = [_layers[id(owner), name] for owner, name in self._places]
            above = {layer for stack in stacks for layer in stack[stack.index(self) + 1 :]}
            oldest_first = sorted(above, key=lambda layer: layer._number)
            for layer in reversed([self, *oldest_first]):
                layer._take_off()
            for stack in stacks:
                stack.remove(self)
            for layer in oldest_first:
                layer._put_on()
            for owner, name in self._places:
                # An object may end, and another one may then get its id.
                if not _layers[id(owner), name]:
                    del _layers[id(owner), name]

    def _put_on(self) -> None:
        made = self._make(getattr(*self._places[0], None))
        # Only an owner's own attributes are kept; for an inherited one, the replacement is deleted again.
        self._before = [vars(owner).get(name, _MISSING) for owner, name in self._places]
        for owner, name in self._places:
            setattr(owner, name, made)

    def _take_off(self) -> None:
        for (owner, name), before in zip(self._places, self._before, strict=True):
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


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
          make: gets the present value, and returns its replacement.

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
            owner, name = places[0]
            if not _layers[id(owner), name]:
                hook.check()
            self.on_undo(_Layer(places, make).remove)
            if hook.subclasses:
                for cls in all_subclasses(places[0][0]):
                    if hook.name in vars(cls):
                        self.replace_attribute(cls, hook.name, make)

    def replace_attribute(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces an attribute that is not in the table.

        Only overrides of a row's method use it, in classes of the program and of this library.

        Args:
          owner: a class.
          name: the attribute, which the owner or a base of it must have.
          make: gets the present value, and returns its replacement.
        """
        getattr(owner, name)
        self.on_undo(_Layer([(owner, name)], make).remove)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Makes `undo` call `action()` after it has restored later replacements, and before earlier ones."""
        self._undo.append(action)

    def undo(self) -> None:
        """Restores all replaced symbols; a second call does nothing."""
        while self._undo:
            self._undo.pop()()


@contextlib.contextmanager
def attribute_replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces an attribute of one object inside the block. The end restores the object's own value, if it had one.

    Args:
      owner: an object of the program, such as an optimizer or a session hook.
      name: the attribute, which the object or its class must have.
      make: gets the present value, and returns its replacement.
    """
    getattr(owner, name)
    layer = _Layer([(owner, name)], make)
    try:
        yield
    finally:
        layer.remove()


def around(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a `make` for `Interception.replace`, which calls `function(original, ...)` in place of the original.

    The replacement has the name, the docstring and the signature of the original.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        return replacement

    return make


def all_subclasses(cls: type) -> list[type]:
    """Returns the classes below `cls`, at any depth, each once."""
    direct: list[type] = cls.__subclasses__()
    return list(dict.fromkeys(direct + [sub for d in direct for sub in all_subclasses(d)]))
