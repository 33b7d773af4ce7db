"""The replaced symbols of a period, which several users may need at the same time."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from lockstep._src.hooks.hook import Period
from lockstep._src.hooks.interception import Interception

Install = Callable[[Interception], None]

_with_objects: weakref.WeakSet[HookSet] = weakref.WeakSet()


class HookSet:
    """Symbols that are replaced from the first `hold` until the last `release`.

    Users are anything hashable. Objects are users as long as they live: when the last of them is gone, the next
    `release` of any set restores the symbols.

    Args:
      period: the period of the replaced symbols.
      install: replaces the symbols.
    """

    def __init__(self, period: Period, install: Install | None = None) -> None:
        self._lock = threading.RLock()
        self._interception = Interception(period)  # guarded by _lock
        self._installs = [] if install is None else [install]  # guarded by _lock
        self._users: set[Hashable] = set()  # guarded by _lock
        # By id, since variables have no hash. Guarded by _lock.
        self._objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def hold(self, user: Hashable) -> None:
        """Replaces the symbols, unless they are replaced already. Further calls for the same user do nothing.

        Raises:
          HookError: a symbol differs from the table; then nothing is replaced.
        """
        with self._lock:
            self._install_for_first()
            self._users.add(user)

    def hold_for(self, thing: Any) -> None:
        """Replaces the symbols for as long as an object lives; see the class."""
        with self._lock:
            self._install_for_first()
            self._objects[id(thing)] = thing
        _with_objects.add(self)

    def release(self, user: Hashable) -> None:
        """Restores the symbols, if `user` is the last one. Does nothing for any other object."""
        with self._lock:
            self._users.discard(user)
            self._settle()
        for other in list(_with_objects):
            other._settle()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Replaces the symbols inside the block."""
        user = object()
        self.hold(user)
        try:
            yield
        finally:
            self.release(user)

    def add(self, install: Install) -> None:
        """Adds symbols to the set; if it is in force, they are replaced now. Repeated calls do nothing."""
        with self._lock:
            if install in self._installs:
                return
            if self._is_held():
                install(self._interception)
            self._installs.append(install)

    def _is_held(self) -> bool:
        return bool(self._users or self._objects)

    def _install_for_first(self) -> None:
        if self._is_held():
            return
        self._interception.undo()  # the last object may have been deleted
        try:
            for install in self._installs:
                install(self._interception)
        except BaseException:
            self._interception.undo()
            raise

    def _settle(self) -> None:
        with self._lock:
            if not self._is_held():
                self._interception.undo()
