"""Short notes from a worker to its launcher: how its program ended, its exchanges, and its last checkpoints.

Each worker inherits the writing end of a pipe. LOCKSTEP_NOTES has its number and its inode, since a program between
launcher and worker may have closed the pipe and opened another file with the same number. A note is a line of JSON. The
worker never waits for space in the pipe: a note that does not fit is dropped.

    {"is": "failed", "because": "peer", "error": ..., "trace": ...}      its program ends because of another rank's end
    {"is": "failed", "because": "itself", "trace": ..., "same": ..., "start_up": false}    or with an error of its own
    {"is": "joined"}                                                     it has joined the other workers
    {"is": "left", "collectives": 12}                                    it has left them, after so many exchanges
    {"is": "saved", "path": ..., "file": ..., "step": ..., "resumes": true, "data": false}    it has saved a checkpoint

A checkpoint's `path` is for the user. Its `file` has an absolute path, and exists as long as the checkpoint does; it is
missing if no file system of the machine has it. `step`, or `epochs`, says how far it is. `resumes` says that the same
command restores it, and `data` that it resumes in the data as well, rather than with the first batch.
"""

import contextlib
import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

VARIABLE = "LOCKSTEP_NOTES"
# Why a program failed: by its own error, because another rank had ended before, or because of the user's signal.
ITSELF, PEER, INTERRUPT = "itself", "peer", "interrupt"
# A pipe holds 64 KiB, and a note takes less. A traceback that is longer is shortened to its last characters, or the
# worker shows it itself.
MOST_TRACE_CHARACTERS = 1 << 12
_MOST_ERROR_CHARACTERS = 500
_MOST_NOTE_BYTES = 60 << 10
# How many checkpoints are remembered: the newest ones may be deleted before the job ends.
_MOST_SAVED = 16


def open_pipe() -> tuple[int, int]:
    """Returns two descriptors: the launcher reads from the first, and the worker inherits the second."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    return read, write


def name_of(write: int) -> str:
    """Returns the value of LOCKSTEP_NOTES for a worker that inherits this descriptor."""
    return f"{write}:{os.fstat(write).st_ino}"


def say(note: dict[str, Any]) -> bool:
    """Sends a note to this worker's launcher; returns False without a launcher, or without space for it."""
    descriptor, _, inode = os.environ.get(VARIABLE, "").partition(":")
    with contextlib.suppress(ValueError, OSError):
        status = os.fstat(int(descriptor))
        if stat.S_ISFIFO(status.st_mode) and status.st_ino == int(inode):
            # It begins with a line's end, since the pipe may have taken only a part of the note before.
            line = b"\n" + json.dumps(note).encode() + b"\n"
            return len(line) <= _MOST_NOTE_BYTES and os.write(int(descriptor), line) == len(line)
    return False


def say_saved(
    path: str | os.PathLike[str],
    *,
    suffix: str = "",
    step: int | None = None,
    epochs: int | None = None,
    resumes: bool = False,
    data: bool = False,
) -> None:
    """Tells the launcher of a checkpoint.

    Args:
      path: The checkpoint: a file, a folder, or the prefix of several files.
      suffix: For a prefix, the end of the name of a file that exists as long as the checkpoint does.
      step: The global step.
      epochs: How many epochs have ended.
      resumes: Whether the same command restores it.
      data: Whether it resumes in the data as well.
    """
    name = os.fspath(path)
    note: dict[str, Any] = {"is": "saved", "path": name, "resumes": resumes, "data": data}
    if "://" not in name:
        note["file"] = os.path.abspath(name + suffix)
    note.update({key: value for key, value in (("step", step), ("epochs", epochs)) if value is not None})
    say(note)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that a worker has saved; see the module.

    Attributes:
      at: How far it is, for messages, such as "step 5"; empty: unknown.
    """

    path: str
    file: str | None
    at: str
    resumes: bool
    data: bool


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
      saved: The checkpoints, the newest last.
      has_exchanged: Whether it has joined other workers, and has not left them without an exchange.
    """

    def __init__(self, heard: Callable[["Notes"], None] | None = None):
        self.because = self.error = self.trace = self.same = ""
        self.start_up = False
        self.saved: Sequence[Saved] = ()
        self.has_exchanged = False
        self._heard = heard
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Takes bytes of the pipe; other lines are skipped."""
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
            others = [saved for saved in self.saved if saved.path != note["path"]]
            self.saved = (*others, _saved_of(note))[-_MOST_SAVED:]
        elif note.get("is") == "joined":
            self.has_exchanged = True
        elif note.get("is") == "left":
            self.has_exchanged = note.get("collectives") != 0
        else:
            return
        if self._heard is not None:
            self._heard(self)


def _saved_of(note: dict[str, Any]) -> Saved:
    step, epochs, file = (note.get(key) for key in ("step", "epochs", "file"))
    at = f"step {step}" if isinstance(step, int) else ""
    if isinstance(epochs, int):
        at = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    return Saved(
        note["path"],
        file if isinstance(file, str) else None,
        at,
        resumes=note.get("resumes") is True,
        data=note.get("data") is True,
    )
