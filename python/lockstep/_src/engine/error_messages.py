"""Makes errors of operations begin with their own sentence; the place where TensorFlow found them follows.

TensorFlow puts two things before the text of an operation's error: the definition of a node, which is a Python stack of
some thousand characters, and names of functions. While this process is part of a job, these functions are replaced:

| replaced | reason |
| --- | --- |
| `error_interpolation.interpolate_graph` | puts the stack first, for sessions |
| `InterpolateRuntimeError.__exit__` | puts the stack first for functions, also for functions of Keras' `fit` |
| `eager.core._status_to_exception` | gets messages that begin with `{{function_node ...}}` |

A message keeps all of its text, except the name of the function into which TensorFlow wraps a single operation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception

_FUNCTIONS = re.compile(r"^(?:\{\{function_node [^}]*\}\} ?)+")
_WRAPPED_FUNCTION_NODE = re.compile(r"\{\{function_node __wrapped__[^}]*\}\} ?")
# The first of several errors: "2 root error(s) found.\n  (0) INVALID_ARGUMENT: ...".
_FIRST_OF_SEVERAL = re.compile(r"^\d+ root error\(s\) found\.\s+\(0\) \w+: ")
_WHERE = re.compile(r"\s*(?:\n\n|\[\[\{\{(?:function_)?node|\[Op:)")


def put_first(user: str) -> None:
    """Makes errors begin with their own sentence until each `user` that asked for it has called `leave`."""
    _hooks.hold(user)


def leave(user: str) -> None:
    """Restores TensorFlow's functions when the last user has left."""
    _hooks.release(user)


def sentence(message: str) -> str:
    """Returns the operation's own text in a message, without the places that TensorFlow puts around it."""
    said = _FIRST_OF_SEVERAL.sub("", _FUNCTIONS.sub("", message))
    said = _FUNCTIONS.sub("", said)
    return _WHERE.split(said, maxsplit=1)[0].strip()


def _functions_last(message: str) -> str:
    """Returns a message with its leading names of functions moved to the end, where TensorFlow still finds them."""
    functions = _FUNCTIONS.match(message)
    return f"{message[functions.end() :]} {functions[0].strip()}" if functions else message


def _wrap_interpolate_graph(interpolate: Callable[[str, Any], str]) -> Callable[[str, Any], str]:
    @functools.wraps(interpolate)
    def wrapped(message: str, graph: Any) -> str:
        return f"{sentence(message)}\n\n{interpolate(message, graph)}"

    return wrapped


def _wrap_exit(leave_function: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(leave_function)
    def wrapped(self: Any, typ: Any, error: Any, trace: Any) -> bool:
        said = sentence(error.message) if isinstance(error, tf.errors.OpError) else ""
        handled = leave_function(self, typ, error, trace)
        if said and not error.message.startswith(said):
            # If TensorFlow found a definition, it is still in front and the sentence is put before it.
            behind = _functions_last(error.message)
            error._message = behind if behind.startswith(said) else f"{said}\n\n{behind}"
        return handled

    return wrapped


def _wrap_status(to_exception: Callable[[Any], Exception]) -> Callable[[Any], Exception]:
    @functools.wraps(to_exception)
    def wrapped(status: Any) -> Exception:
        status.message = _functions_last(_WRAPPED_FUNCTION_NODE.sub("", status.message))
        return to_exception(status)

    return wrapped


def _intercept(interception: Interception) -> None:
    interception.replace(symbols.INTERPOLATE_GRAPH, _wrap_interpolate_graph)
    interception.replace(symbols.INTERPOLATE_RUNTIME, _wrap_exit)
    interception.replace(symbols.STATUS_TO_EXCEPTION, _wrap_status)


_hooks = HookSet(symbols.JOB, _intercept)
