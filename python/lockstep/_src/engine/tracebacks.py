"""Tracebacks as a user needs them: without the frames of replaced symbols, and comparable between ranks.

A symbol of TensorFlow or Keras that a scope has replaced adds a frame of `hooks/interception.py` to each call. Such a
frame says nothing about the program, so the traceback that ends a program omits it. A line is added behind
the traceback of a program that wants a name of TensorFlow 1.

An error of an operation says by itself what is wrong. Frames of TensorFlow, of Keras and of this library add nothing to
it: neither in its traceback nor in the places that TensorFlow lists for a node. They are removed as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType

_LOCKSTEP = Path(__file__).resolve().parents[2]
_INTERCEPTION = str(Path(__file__).parents[1] / "hooks" / "interception.py")
# TensorFlow's messages list the frames in which a node was made, each with an empty line after it.
_LISTED_FRAME = re.compile(rf'^ *File "{re.escape(_INTERCEPTION)}", line \d+, in \w+\n(?:[ \t]*\n)?', re.MULTILINE)
# A frame in such a list, its file and its function. Functions of this library's operations have no file.
_ANY_LISTED_FRAME = re.compile(r'^ *File "([^"\n]*)", line \d+, in (\S+)\n(?:[ \t]*\n)?', re.MULTILINE)
_GENERATED_OPERATION = re.compile(r"(?:_apply_)?lockstep_\w+")
# The second list of a session's error: the places where its node was made, with all frames of libraries.
_SECOND_LIST = re.compile(r"\n+Original stack trace for '[^'\n]*':\n(?:[ \t]+\S.*(?:\n|$))*")
# The packages that make and run operations.
_OF_OPERATIONS = (
    "tensorflow",
    "tensorflow_estimator",
    "keras",
    "tf_keras",
    "keras_rs",
    "hybridbackend",
    "horovod",
    "deeprec",
    "sparse_operation_kit",
)
# Folders whose frames are not part of the program.
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(path + os.sep for path in (str(_LOCKSTEP), *(_PATHS[k] for k in ("stdlib", "purelib", "platlib"))))
_GENERATED = "__autograph_generated_file"
# Parts of a message that differ between processes: addresses, AutoGraph's files, the numbers of traced functions, and
# the rank that reports.
_OF_A_PROCESS = re.compile(rf"0x[0-9a-f]+|{_GENERATED}\w+|(?<=__inference_)\w+|\brank \d+: ")

_ANY_RANK = re.compile(r"\brank (\d+)\b")
# The folders of TensorFlow's API: with the names of TensorFlow 2, and with the names of TensorFlow 1.
_API_2, _API_1 = "tensorflow._api.v2", "tensorflow._api.v2.compat.v1"
_KERAS_IN_TENSORFLOW = ("keras._tf_keras.keras", "keras.api._v2.keras", "tf_keras.api._v2.keras")
_LAUNCHER_OF_TENSORFLOW_1 = "lockstep.launch.tf1"


def hide_interception(error: BaseException) -> None:
    """Removes the frames of replaced symbols from the tracebacks of an error and of the errors before it.

    A frame in which an error was raised is kept, so a traceback never becomes empty.
    """
    for one in _shown_with(error):
        one.__traceback__ = _without_interception(one.__traceback__)


def text_of(error: BaseException) -> str:
    """Returns the traceback as the interpreter shows it, without frames that say nothing about the program."""
    hide_interception(error)
    of_operations = [one for one in _shown_with(error) if _is_of_an_operation(one)]
    folders = _folders_of_operations()
    for one in of_operations:
        _hide_operations(one, folders)
    shown = io.StringIO()
    # The module `traceback` shows other lines than the interpreter for tracebacks that Keras has made itself.
    with contextlib.redirect_stderr(shown):
        sys.__excepthook__(type(error), error, error.__traceback__)
    text = shown.getvalue()
    for one in of_operations:
        text = text.replace(str(one), _places_of_program(str(one), folders))
    return _LISTED_FRAME.sub("", text) + hint_for(error)


def _is_of_an_operation(error: BaseException) -> bool:
    """Returns whether an operation of TensorFlow has failed, for which TensorFlow's own frames say nothing."""
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    return errors is not None and isinstance(error, errors.OpError)


def _folders_of_operations() -> tuple[str, ...]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _OF_OPERATIONS]
    return (str(_LOCKSTEP) + os.sep, *(os.path.dirname(file) + os.sep for file in files if file))


def _hide_operations(error: BaseException, folders: tuple[str, ...]) -> None:
    """Removes the frames of libraries from the traceback of an operation's error, if other frames remain."""
    kept: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(folders):
            kept.append(trace)
        trace = trace.tb_next
    if kept:
        for one, following in zip(kept, [*kept[1:], None], strict=True):
            one.tb_next = following
        error.__traceback__ = kept[0]
    # A session raises its error again, with the node's definition.
    first = error.__context__
    if first is not None and _is_of_an_operation(first) and not any(_program_lines(first.__traceback__)):
        error.__suppress_context__ = True


def _places_of_program(message: str, folders: tuple[str, ...]) -> str:
    """Returns the message of an operation's error with the program's own frames only."""

    def kept(frame: re.Match[str]) -> str:
        file, function = frame.groups()
        is_generated = file == "<string>" and _GENERATED_OPERATION.fullmatch(function)
        return "" if is_generated or file.startswith(folders) else frame[0]

    return _ANY_LISTED_FRAME.sub(kept, _SECOND_LIST.sub("\n", message)).rstrip("\n")


def hint_for(error: BaseException) -> str:
    """Returns the line that follows a traceback if a name of TensorFlow 1 is missing; empty for other errors."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ModuleType) or error.name is None:
        return ""
    if _LAUNCHER_OF_TENSORFLOW_1 in sys.orig_argv:  # it has a line of its own
        return ""
    namespace = _namespace_of(error.obj.__name__)
    if namespace is None:
        return ""
    is_estimator = (namespace, error.name) == ("", "estimator")  # TensorFlow has none any more, and --tf1 has one
    if not is_estimator and not hasattr(sys.modules.get(f"{_API_1}{namespace}"), error.name):
        return ""
    name = f"tf{namespace}.{error.name}"
    return (
        f"lockstep: {name} is a name of TensorFlow 1. Run the program with --tf1, such as "
        "lockstep run -n 2 --tf1 python main.py, or write: import tensorflow.compat.v1 as tf\n"
    )


def _namespace_of(module: str) -> str | None:
    """Returns the place in `tensorflow` of a module of TensorFlow 2's API, such as ".data"; None for other modules."""
    if module == "tensorflow":
        return ""
    if (module + ".").startswith(f"{_API_1}."):
        return None
    for prefix in (_API_2, *_KERAS_IN_TENSORFLOW):  # tf.losses and tf.metrics are modules of Keras
        if module.startswith(f"{prefix}."):
            return module.removeprefix(prefix)
    return None


def identity(error: BaseException, rank: str) -> str:
    """Returns a text that is the same for the same error of another rank.

    Errors are the same if their classes, their messages and the program's own lines are the same, also for
    their causes. Frames of libraries may differ: a chief creates its session in another way than other workers.

    Args:
      error: The error.
      rank: This process's rank, which a message may contain.
    """
    parts: list[str] = []
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        message = _OF_A_PROCESS.sub("", str(cause))
        if set(_ANY_RANK.findall(message)) == {rank}:  # a message about several ranks is the same on each of them
            message = _ANY_RANK.sub("this rank", message)
        parts += [type(cause).__qualname__, message, *_program_lines(cause.__traceback__)]
        cause = cause.__cause__
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()


def _program_lines(trace: TracebackType | None) -> Iterator[str]:
    for frame, line in traceback.walk_tb(trace):
        path = frame.f_code.co_filename
        if not path.startswith((*_LIBRARIES, "<frozen")) and _GENERATED not in path:
            yield f"{path}:{line} {frame.f_code.co_name}"


def _shown_with(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors that the interpreter shows before it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__]


def _without_interception(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if trace.tb_next is None or trace.tb_frame.f_code.co_filename != _INTERCEPTION:
            kept.append(trace)
        trace = trace.tb_next
    for one, following in zip(kept, kept[1:], strict=False):
        one.tb_next = following
    return kept[0] if kept else None
