"""Short notes from a worker to its launcher: why its program failed, and which checkpoint is the last.

Each worker inherits the writing end of a pipe. LOCKSTEP_NOTES has its number and its inode, since a program between
launcher and worker may have closed the pipe and opened another file with the same number. A note is a line of JSON. The
worker never waits for space in the pipe: a note that does not fit is dropped.

    {"is": "failed", "because": "peer", "error": ..., "trace": ...}      its program ends because of another rank's end
    {"is": "failed", "because": "itself", "trace": ..., "same": ..., "start_up": false}    or with an error of its own
    {"is": "saved", "path": ..., "step": ..., "resumes": true}           it has announced a checkpoint
"""

import contextlib
import json
import os
import stat
from collections.abc import Callable
from typing import Any

VARIABLE = "LOCKSTEP_NOTES"
# Why a program failed: by its own error, because another rank had ended before, or because of the user's signal.
ITSELF, PEER, INTERRUPT = "itself", "peer", "interrupt"
# A pipe holds 64 KiB, and a note takes less. A traceback that is longer is shortened to its last characters, or the
# worker shows it itself.
MOST_TRACE_CHARACTERS = 1 << 12
_MOST_ERROR_CHARACTERS = 500
_MOST_NOTE_BYTES = 60 << 10


def open_pipe() -> tuple[int, int]:
    """Returns two descriptors: the launcher reads from the first, and the worker inherits the second."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    return read, write


def name_of(write: int) -> str:
    """Returns the value of LOCKSTEP_NOTES for a worker that inherits this descriptor."""
    return f"{write}:{os.fstat(write).st_ino}"


def say(note: dict[str, Any]) -> bool:
    """Sends a note to this worker's launcher; returns False if there is no launcher, or no space for it."""
    descriptor, _, inode = os.environ.get(VARIABLE, "").partition(":")
    with contextlib.suppress(ValueError, OSError):
        status = os.fstat(int(descriptor))
        if stat.S_ISFIFO(status.st_mode) and status.st_ino == int(inode):
            # It begins with a line's end, since the pipe may have taken only a part of the note before.
            line = b"\n" + json.dumps(note).encode() + b"\n"
            return len(line) <= _MOST_NOTE_BYTES and os.write(int(descriptor), line) == len(line)
    return False


class Notes:
    """The notes of a worker; a sink for its pipe.

    Args:
      heard: Called after each note.

    Attributes:
      because: ITSELF, PEER or INTERRUPT, once its program has failed; else empty.
      error: The error in one line.
      trace: Its traceback, if the worker has not written it itself.
      same: A text that other ranks with the same error send as well; empty if the error is not the program's own.
      start_up: Whether TensorFlow's start-up lines may explain the error.
      saved: The newest checkpoint: its path, its step (None: unknown), and whether the same command resumes from it.
    """

    def __init__(self, heard: Callable[["Notes"], None] | None = None):
        self.because = self.error = self.trace = self.same = ""
        self.start_up = False
        self.saved: tuple[str, int | None, bool] | None = None
        self._heard = heard
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Takes bytes of the pipe; lines that are no notes are skipped."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-_MOST_NOTE_BYTES:]
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                note = json.loads(line)
                if isinstance(note, dict):
                    self._take(note)

    def finish(self) -> None:
        """Does nothing at the end of the pipe."""

    def _take(self, note: dict[str, Any]) -> None:
        if note.get("is") == "failed" and note.get("because") in (ITSELF, PEER, INTERRUPT):
            if self.because:
                return  # the program ends with an exit code that follows from the first error
            self.because = note["because"]
            self.error = " ".join(str(note.get("error", "")).split())[:_MOST_ERROR_CHARACTERS]
            self.trace, self.same = str(note.get("trace", "")), str(note.get("same", ""))
            self.start_up = note.get("start_up") is True
        elif note.get("is") == "saved" and isinstance(note.get("path"), str):
            step = note.get("step")
            self.saved = note["path"], step if isinstance(step, int) else None, note.get("resumes") is True
        else:
            return
        if self._heard is not None:
            self._heard(self)
