"""Errors of saving, raised with classes for which every session and every training loop fails.

TensorFlow gives errors of files codes that have other meanings, and sessions and loops act on the code:

| error of the system | TensorFlow's class | a session | class here |
| --- | --- | --- | --- |
| EFBIG: the file may not grow (`ulimit -f`) | `OutOfRangeError` | ends in good order | `ResourceExhaustedError` |
| ESTALE, ...: a file server is gone | `AbortedError`, `UnavailableError` | starts over | `InternalError` |

TensorFlow itself reports a full disk as `ResourceExhaustedError`. Keras takes `OutOfRangeError` for the end of an
epoch.

A scope's savers save for the whole job and raise such errors on all workers (`raised_on_all`). In a program of Horovod,
each rank saves by itself. Errors of saving then end this rank (`intercept_savers`, `intercept_callbacks`), and the
other ranks hear how it ended.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.engine import error_messages, library
from lockstep._src.engine.context import context
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook import Hook
from lockstep._src.hooks.interception import Interception

# The classes that replace those on which sessions and loops do not fail.
_RAISED: dict[type[tf.errors.OpError], type[tf.errors.OpError]] = {
    tf.errors.OutOfRangeError: tf.errors.ResourceExhaustedError,
    tf.errors.AbortedError: tf.errors.InternalError,
    tf.errors.UnavailableError: tf.errors.InternalError,
}


# The attribute of errors that this module has already named.
_MARK = "_lockstep_named"


@contextlib.contextmanager
def raised(what: str) -> Iterator[None]:
    """Raises an error of the block with another class if sessions or loops would not fail on its own class.

    Args:
      what: a description of the failed work; the message begins with it.
    """
    try:
        yield
    except tuple(_RAISED) as error:
        raise named(error, f"{what}: {cause_of(error)}") from error


@contextlib.contextmanager
def raised_on_all(what: str) -> Iterator[None]:
    """Makes an error of one worker in the block an error of all workers, on which every session fails.

    From then on, collectives of the other workers end with `CancelledError` and the same text. Errors of arguments
    (`TypeError`, `ValueError`) are raised unchanged, since all workers have the same arguments.

    Args:
      what: a description of the failed work; messages begin with it.

    Raises:
      tf.errors.OpError: with the class of the table above.
      OSError: with `what` before its text.
    """
    try:
        yield
    except (TypeError, ValueError):
        raise
    except Exception as error:
        if getattr(error, _MARK, False):
            raise
        cause = cause_of(error)
        # The error of another worker's save has this text already.
        text = cause if what in cause else f"{what}: {cause}"
        if context.world_size > 1 and library.is_initialized():
            library.abort(text)
        other = named(error, text)
        if other is error:
            raise
        raise other from error


def not_saved(save_path: Any, step: Any) -> str:
    """Returns the sentence for a checkpoint that cannot be saved; the sentence omits a step that is a tensor."""
    path = tf.compat.as_str_any(save_path)
    return f"checkpoint {f'{path}-{step}' if isinstance(step, (int, np.integer)) else path} cannot be saved"


@contextlib.contextmanager
def while_restoring(save_path: Any) -> Iterator[None]:
    """Gives an error of `Saver.restore` a text that says which checkpoint is damaged or cannot be read.

    TensorFlow's own error for a truncated data file only says that fewer bytes were read than requested. Its class is
    the one that training loops take for the end of their data. If a file server is gone, a session would start over.
    """
    path = tf.compat.as_str_any(save_path)
    with raised(f"checkpoint {path} cannot be read"):
        try:
            yield
        except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
            if path in error.message and isinstance(error, tf.errors.DataLossError):
                raise
            raise tf.errors.DataLossError(
                error.node_def, error.op, f"checkpoint {path} is damaged: {error.message}"
            ) from error


def intercept_savers(interception: Interception) -> None:
    """Makes all of TensorFlow's savers, and so its sessions and estimators, raise errors as `raised` does."""
    interception.replace(symbols.SAVER_SAVE, _wrap_save)
    interception.replace(symbols.SAVER_RESTORE, _wrap_restore)


def _wrap_save(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def wrapped(self: Any, sess: Any, save_path: Any, global_step: Any = None, *args: Any, **kwargs: Any) -> Any:
        with raised(not_saved(save_path, global_step)):
            return save(self, sess, save_path, global_step, *args, **kwargs)

    return wrapped


def _wrap_restore(restore: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(restore)
    def wrapped(self: Any, sess: Any, save_path: Any) -> None:
        with while_restoring(save_path):
            restore(self, sess, save_path)

    return wrapped


def intercept_callbacks(interception: Interception, hooks: Iterable[Hook]) -> None:
    """Makes a Keras package raise errors of files that its callbacks write during a batch.

    Args:
      interception: the interception that holds the replacements.
      hooks: the methods of the package's `CallbackList`.
    """
    for hook in hooks:
        interception.replace(hook, _wrap_callbacks)


def _wrap_callbacks(tell: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(tell)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with raised("a callback failed"):
            return tell(*args, **kwargs)

    return wrapped


def cause_of(error: BaseException) -> str:
    """Returns an error as one line, without the stacks of operations that TensorFlow writes around it."""
    if not isinstance(error, tf.errors.OpError):
        return " ".join(f"{type(error).__name__}: {error}".split())
    of_operation: Any = error
    inner = error.__context__
    if of_operation.message.startswith("Graph execution error") and isinstance(inner, tf.errors.OpError):
        of_operation = inner  # without the graph around it
    lines = of_operation.message.splitlines() or [type(of_operation).__name__]
    if len(lines) > 1 and "root error(s) found" in lines[0]:
        return lines[1].partition(": ")[2]  # "  (0) OUT_OF_RANGE: ..."
    return error_messages.sentence(lines[0])


def named(error: Exception, text: str) -> Exception:
    """Returns an error of files with the text `text` and the class of the table above; other errors unchanged."""
    if isinstance(error, tf.errors.OpError):
        # The new error has no operation, because the operation's stack would end the text; the original error has it.
        other: Exception = _RAISED.get(type(error), type(error))(None, None, text)
    elif isinstance(error, OSError):
        other = type(error)(error.errno, text)
    else:
        other = error
    setattr(other, _MARK, True)
    return other
