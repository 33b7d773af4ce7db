"""Threads, as Horovod's programs start them."""

import threading
from collections.abc import Callable
from typing import Any


def in_thread(
    target: Callable[..., Any], args: tuple[Any, ...] = (), name: str | None = None, daemon: bool = True
) -> threading.Thread:
    """Calls `target(*args)` in a new thread, which is returned; ValueError where `args` is no tuple."""
    if not isinstance(args, tuple):
        raise ValueError(f"args is {type(args).__name__}, wanted a tuple; a single argument is (argument,)")
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread
