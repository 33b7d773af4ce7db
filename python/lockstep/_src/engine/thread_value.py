"""A value that each thread has for itself, and that a block sets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadValue(threading.local, Generic[T]):
    """A value of each thread.

    Args:
      value: the value in every thread, outside of `holding`.

    Attributes:
      value: the current thread's value.
    """

    def __init__(self, value: T) -> None:
        self.value = value  # `threading.local` calls this in each thread

    @contextlib.contextmanager
    def holding(self, value: T) -> Iterator[None]:
        """Sets the value of this thread inside the block; afterwards it is again what it was before."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
