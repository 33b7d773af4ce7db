"""Tracebacks as a user needs them: without the frames of replaced symbols, and comparable between ranks.

A symbol of TensorFlow or Keras that a scope has replaced adds a frame of `hooks/interception.py` to each call. Such a
frame says nothing about the program, so it is removed from the traceback that ends a program.
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
from types import TracebackType

_LOCKSTEP = Path(__file__).resolve().parents[2]
_INTERCEPTION = str(Path(__file__).parents[1] / "hooks" / "interception.py")
# TensorFlow's messages list the frames in which a node was made, each with an empty line after it.
_LISTED_FRAME = re.compile(rf'^ *File "{re.escape(_INTERCEPTION)}", line \d+, in \w+\n(?:[ \t]*\n)?', re.MULTILINE)
# Folders whose frames are no part of the program.
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(path + os.sep for path in (str(_LOCKSTEP), *(_PATHS[k] for k in ("stdlib", "purelib", "platlib"))))
_GENERATED = "__autograph_generated_file"
# Parts of a message that differ between processes: addresses, AutoGraph's files, the numbers of traced functions, and
# the rank that reports.
_OF_A_PROCESS = re.compile(rf"0x[0-9a-f]+|{_GENERATED}\w+|(?<=__inference_)\w+|\brank \d+: ")


def hide_interception(error: BaseException) -> None:
    """Removes the frames of replaced symbols from the tracebacks of an error and of the errors before it.

    A frame in which an error was raised is kept, so a traceback never becomes empty.
    """
    for one in _shown_with(error):
        one.__traceback__ = _without_interception(one.__traceback__)


def text_of(error: BaseException) -> str:
    """Returns the traceback as the interpreter shows it, without the frames of replaced symbols."""
    hide_interception(error)
    text = io.StringIO()
    # The module `traceback` shows other lines than the interpreter for tracebacks that Keras has made itself.
    with contextlib.redirect_stderr(text):
        sys.__excepthook__(type(error), error, error.__traceback__)
    return _LISTED_FRAME.sub("", text.getvalue())


def identity(error: BaseException, rank: str) -> str:
    """Returns a text that is the same for the same error of another rank.

    Errors are the same if their classes, their messages and the program's own lines are the same, and so are those of
    their causes. Frames of libraries may differ: a chief creates its session in another way than other workers.

    Args:
      error: The error.
      rank: This process's rank, which a message may contain.
    """
    parts: list[str] = []
    own_rank = re.compile(rf"\brank {re.escape(rank)}\b")
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        message = own_rank.sub("this rank", _OF_A_PROCESS.sub("", str(cause)))
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
