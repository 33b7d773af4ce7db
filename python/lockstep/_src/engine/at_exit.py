"""What is to be done at the end of a process, however Python ends it."""

import atexit
import multiprocessing
import multiprocessing.util
from collections.abc import Callable


def register(function: Callable[[], None]) -> None:
    """Has a function be called once when this process ends, unless it is taken back with `unregister`.

    Processes of `multiprocessing` that are forks end without exit handlers, by finalizers of their own.
    """
    atexit.register(function)
    if multiprocessing.parent_process() is not None:
        _finalizers[function] = multiprocessing.util.Finalize(None, _call, (function,), exitpriority=0)


def unregister(function: Callable[[], None]) -> None:
    """Takes it back; nothing where it was not registered."""
    atexit.unregister(function)
    if (finalizer := _finalizers.pop(function, None)) is not None:
        finalizer.cancel()


def _call(function: Callable[[], None]) -> None:
    unregister(function)
    function()


_finalizers: dict[Callable[[], None], multiprocessing.util.Finalize] = {}
