"""Functions that are called at the end of a process, however Python ends it."""

import atexit
import multiprocessing
import multiprocessing.util
from collections.abc import Callable


def register(function: Callable[[], None]) -> None:
    """Registers a function that is called once when this process ends, unless `unregister` removes it before.

    Processes of `multiprocessing` that are forks end without exit handlers; they run finalizers of their own.
    """
    atexit.register(function)
    if multiprocessing.parent_process() is not None:
        _finalizers[function] = multiprocessing.util.Finalize(None, _call, (function,), exitpriority=0)


def unregister(function: Callable[[], None]) -> None:
    """Removes a registered function; does nothing if it is not registered."""
    atexit.unregister(function)
    if (finalizer := _finalizers.pop(function, None)) is not None:
        finalizer.cancel()


def _call(function: Callable[[], None]) -> None:
    unregister(function)
    function()


_finalizers: dict[Callable[[], None], multiprocessing.util.Finalize] = {}
