"""A warning for programs of a job whose workers train apart: they use this library, and never enter a scope.

Without a scope nothing connects the workers: each one trains a model of its own, on its own part of the data, and no
value tells. So worker 0 warns when such a program first reads a share of the data, makes a table, or exports a model.
The engine shows one warning in the life of a process. It shows none once the process has begun to join the others, by a
scope, an exchange, `lockstep.init()` or `hvd.init()` (core/capi/apart_warning.h).

A program may read a batch before its scope, and join later. Therefore the texts say what is so at this moment.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from lockstep._src.engine import program_end
from lockstep._src.engine.context import context

_lock = threading.Lock()
_open_scopes = 0  # guarded by _lock
_has_warned_of_step = False
_REMEDY = (
    "Build the model and call fit inside of `with lockstep.scope():` (docs/start.md). A program that exchanges "
    "gradients itself calls lockstep.init() before, or hvd.init() in Horovod's interface"
)


def watches_reads() -> bool:
    """Prepares the warning that the first element of a share shows. For datasets that give each worker a share.

    Returns:
      Whether this process may still show it. If not, a dataset need not report reads to the engine.
    """
    watches = _speaks() and not program_end.has_joined()
    if watches:
        from lockstep._src.engine import library

        library.set_apart_text(_text("its data is read", "Each worker would train a model of its own on it"))
    return watches


def warn(what: str, consequence: str) -> None:
    """Warns that a program does something outside of a scope that only makes sense inside.

    Args:
      what: the beginning of a sentence about it, such as "the table 'user' is made".
      consequence: a sentence without its end.
    """
    if _speaks():
        from lockstep._src.engine import library

        library.warn_apart(_text(what, consequence))


@contextlib.contextmanager
def open_scope() -> Iterator[None]:
    """Marks a scope as open inside of the block. Any number of them may be open."""
    global _open_scopes
    with _lock:
        _open_scopes += 1
    try:
        yield
    finally:
        with _lock:
            _open_scopes -= 1


def is_scope_open() -> bool:
    """Returns whether a scope is open in this process."""
    return _open_scopes > 0


def note_own_gradient() -> None:
    """Warns once if a gradient of a table is made while no scope is open: other gradients are not exchanged."""
    if not _open_scopes:
        warn_of_own_step("a gradient of a sharded or dynamic table is computed")


def warn_of_own_step(what: str) -> None:
    """Warns once of a step of training outside of the scope, in a process that has joined the others.

    Args:
      what: the beginning of a sentence, such as "an optimizer takes a step".
    """
    global _has_warned_of_step
    if _speaks() and not _has_warned_of_step:
        _has_warned_of_step = True
        tf.compat.v1.logging.warning(
            "The job has %d workers, and %s outside of lockstep.scope(): gradients of dense weights are not exchanged "
            "there, so each worker trains its own copy of them, on its own part of the data. Build the model and call "
            "fit, or your own loop, inside of `with lockstep.scope():` (docs/start.md).",
            context.world_size,
            what,
        )


def _speaks() -> bool:
    return context.rank == 0 and context.world_size > 1 and not context.is_detached


def _text(what: str, consequence: str) -> str:
    return (
        f"the job has {context.world_size} workers, and {what} outside of lockstep.scope(), while this worker has not "
        f"joined the others. {consequence}, on its own part of the data. {_REMEDY}"
    )
