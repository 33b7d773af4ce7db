"""Errors of saving: errors of the whole job, that no session and no loop takes for something else.

TensorFlow gives errors of files the codes of other things, and sessions and loops go by the code:

| of the system | of TensorFlow | a session | here |
| --- | --- | --- | --- |
| EFBIG: the file may not grow (`ulimit -f`) | `OutOfRangeError` | ends in good order | `ResourceExhaustedError` |
| ESTALE, ...: a server of files is gone | `AbortedError`, `UnavailableError` | starts over | `InternalError` |

A full disk is a `ResourceExhaustedError` of TensorFlow's own. Keras takes an `OutOfRangeError` for the end of an epoch.

A scope's savers save for the job and raise such errors on all workers (`of_the_job`). In a program of Horovod's each
rank saves by itself: its errors end it (`intercept_savers`, `intercept_callbacks`), and others hear how it ended.
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

# What takes the place of a class that sessions and loops don't raise.
_RAISED: dict[type[tf.errors.OpError], type[tf.errors.OpError]] = {
    tf.errors.OutOfRangeError: tf.errors.ResourceExhaustedError,
    tf.errors.AbortedError: tf.errors.InternalError,
    tf.errors.UnavailableError: tf.errors.InternalError,
}


# An error that has been through here.
_MARK = "_lockstep_named"


@contextlib.contextmanager
def raised(what: str) -> Iterator[None]:
    """Gives an error inside another class, where a session or a loop would not raise it.

    Args:
      what: what failed; the message begins with it.
    """
    try:
        yield
    except tuple(_RAISED) as error:
        raise _named(error, f"{what}: {cause_of(error)}") from error


@contextlib.contextmanager
def of_the_job(what: str) -> Iterator[None]:
    """Makes an error inside, on one worker, an error of all workers that every session raises.

    Collectives of the other workers end with `CancelledError` and the same words, from now on. Errors of arguments
    (`TypeError`, `ValueError`) stay as they are, since all workers have them alike.

    Args:
      what: what failed; messages begin with it.

    Raises:
      tf.errors.OpError: in the class that the table above gives it.
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
        # An error of another worker's save has said it.
        text = cause if what in cause else f"{what}: {cause}"
        if context.world_size > 1 and library.is_initialized():
            library.abort(text)
        named = _named(error, text)
        if named is error:
            raise
        raise named from error


def not_saved(save_path: Any, step: Any) -> str:
    """Returns the sentence for a checkpoint that `Saver.save` cannot save; a step that is a tensor is not in it."""
    path = tf.compat.as_str_any(save_path)
    return f"checkpoint {f'{path}-{step}' if isinstance(step, (int, np.integer)) else path} cannot be saved"


@contextlib.contextmanager
def of_restoring(save_path: Any) -> Iterator[None]:
    """Gives an error of `Saver.restore` a text that says which checkpoint is damaged, or cannot be read.

    TensorFlow doesn't: of a data file that was cut off it says that fewer bytes were read than asked for, as the error
    that a training loop takes for the end of its data. Where a server of files went, a session would start over.
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
    """Has all of TensorFlow's savers, and with them its sessions and estimators, raise errors while this lasts."""
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
        with of_restoring(save_path):
            restore(self, sess, save_path)

    return wrapped


def intercept_callbacks(interception: Interception, hooks: Iterable[Hook]) -> None:
    """Has a Keras raise errors of what its callbacks write in a batch, while this lasts.

    Args:
      interception: takes the replacements.
      hooks: the methods of its `CallbackList`.
    """
    for hook in hooks:
        interception.replace(hook, _wrap_callbacks)


def _wrap_callbacks(tell: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(tell)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with raised("a callback failed"):
            return tell(*args, **kwargs)

    return wrapped


def cause_of(error: Exception) -> str:
    """Returns an error in one line, without the stacks of operations that TensorFlow writes around it."""
    if not isinstance(error, tf.errors.OpError):
        return " ".join(f"{type(error).__name__}: {error}".split())
    inner = error.__context__
    if error.message.startswith("Graph execution error") and isinstance(inner, tf.errors.OpError):
        error = inner  # the error as the operation gave it to the session
    lines = error.message.splitlines() or [type(error).__name__]
    if len(lines) > 1 and "root error(s) found" in lines[0]:
        return lines[1].partition(": ")[2]  # "  (0) OUT_OF_RANGE: ..."
    return error_messages.sentence(lines[0])


def _named(error: Exception, text: str) -> Exception:
    """An error of files that says `text`, in the class in which it is raised everywhere; any other error as it is."""
    if isinstance(error, tf.errors.OpError):
        # Without the operation, whose stack would end the text; the error before it has it.
        named: Exception = _RAISED.get(type(error), type(error))(None, None, text)
    elif isinstance(error, OSError):
        named = type(error)(error.errno, text)
    else:
        named = error
    setattr(named, _MARK, True)
    return named
