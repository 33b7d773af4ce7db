r"""What a launcher and its agent on another host say to each other, over the agent's standard input and output.

The bytes are carried by what started the agent (ssh, srun), which has made sure who is who. The agent begins with a
line, `MARK`: what a login writes before it is no part of the conversation. Then both send frames:

    4 bytes  length of the message, big endian
    4 bytes  length of the data
    message  a JSON object, whose "is" says what it is
    data     bytes that the message is about

    launcher  prepare  folder, interface, meets, name, others, silence_s    first; the agent looks whether it can
    agent     ready    pid, host, port          can: with the address at which rank 0 is reached, where it `meets`
    agent     refused  why, code                cannot, and ends
    launcher  file     name + data              a part of a file that workers find in the folder of LOCKSTEP_CALL
    launcher  start    command, environment, assigns_gpus, workers     each with its variables
    launcher  add      rank, command, environment, variables, of_host    of an elastic job: starts one more worker;
                                                its number in the job stands in all messages for its rank
    agent     started  rank, pid
    agent     output   rank, of + data          what a worker wrote to stdout (1) or stderr (2), or noted (3: `notes`)
    agent     file     name + data              a part of a file that a worker left in that folder
    agent     ended    rank, code               negative: the signal
    agent     said     text                     for the user
    launcher  signal   rank, number             for a worker's process group
    launcher  end                               end all that runs
    agent     done                              nothing runs any more, and all has been said
    both      alive                             all the time: who has heard nothing for silence_s ends the workers
"""

import contextlib
import json
import os
import select
import struct
import threading
import time
from typing import Any

MARK = b"lockstep agent 2\n"
# After the workers' own 8 s (LOCKSTEP_SILENCE_TIMEOUT): their errors say in which operation they were. TCP may send for
# the last time after 3.2 s and then after 6.4 s, so a cut of 5 s is a silence of up to 7 s and of what lies between two
# signs of life.
SILENCE_S = 8.5
ALIVE_EVERY_S = 0.25
# A part of a file, or of output.
DATA_BYTES = 1 << 18
_HEAD = struct.Struct("!II")
# An environment, of which Linux takes some MiB, is the longest message.
_MAX_MESSAGE_BYTES = 16 << 20
_MAX_NOISE_BYTES = 1 << 16
_READ_BYTES = 1 << 18

Message = dict[str, Any]


class WireError(Exception):
    """What came is no frame, or no message of the other side."""


def frame(message: Message, data: bytes = b"") -> bytes:
    """The bytes of one."""
    text = json.dumps(message).encode()
    return _HEAD.pack(len(text), len(data)) + text + data


class Frames:
    """Cuts what comes into frames.

    Args:
      mark: A line that comes before the first; empty: none.

    Attributes:
      noise: What came before it.
    """

    def __init__(self, mark: bytes = b""):
        self._mark, self._rest = mark, bytearray()
        self.noise = b""

    @property
    def has_begun(self) -> bool:
        """Whether the mark has come."""
        return not self._mark

    def feed(self, chunk: bytes) -> list[tuple[Message, bytes]]:
        """The frames that are complete with these bytes: messages, with their data.

        Raises:
          WireError: there is something else, or more than there may be.
        """
        self._rest += chunk
        if self._mark and not self._skip_noise():
            return []
        found, at = [], 0
        while len(self._rest) - at >= _HEAD.size:
            size, more = _HEAD.unpack_from(self._rest, at)
            if size > _MAX_MESSAGE_BYTES or more > DATA_BYTES:
                raise WireError(
                    f"a frame of {size} and {more} bytes, wanted at most {_MAX_MESSAGE_BYTES}, {DATA_BYTES}"
                )
            text = at + _HEAD.size
            data, end = text + size, text + size + more
            if len(self._rest) < end:
                break
            found.append((_read(bytes(self._rest[text:data])), bytes(self._rest[data:end])))
            at = end
        del self._rest[:at]
        return found

    def _skip_noise(self) -> bool:
        at = self._rest.find(self._mark)
        self.noise = bytes(self._rest[: at if at >= 0 else len(self._rest)])
        if len(self.noise) > _MAX_NOISE_BYTES:
            raise WireError(f"more than {_MAX_NOISE_BYTES} bytes before the agent's first")
        if at < 0:
            return False
        del self._rest[: at + len(self._mark)]
        self._mark = b""
        return True


def _read(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("is"), str):
        raise WireError("a frame whose message is no object that says what it is")
    return message


def field(message: Message, name: str, kind: type) -> Any:
    """A member of a message.

    Raises:
      WireError: it is not there, or of another type.
    """
    value = message.get(name)
    if type(value) is not kind:
        raise WireError(f"{message['is']}: {name} is {str(value)[:80]!r}, wanted {kind.__name__}")
    return value


class Link:
    """One side of a conversation. Nothing waits: what cannot be written yet is kept.

    Thread safe are `say`, `alive` and `close`.

    Args:
      source: File descriptor that is read.
      target: File descriptor that is written.
      mark: As of `Frames`.

    Attributes:
      heard_at: When something came, by time.monotonic.
    """

    def __init__(self, source: int, target: int, mark: bytes = b""):
        self.source, self.target = source, target
        for fd in (source, target):
            os.set_blocking(fd, False)
        self.frames = Frames(mark)
        self.heard_at = time.monotonic()
        self._outgoing = bytearray()  # guarded by _lock, as is _is_closed
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Bytes that could not be written yet."""
        return len(self._outgoing)

    def say(self, message: Message, data: bytes = b"") -> None:
        """Sends a message, now or by `flush`; the end of a conversation is noticed where it is read."""
        with self._lock:
            if self._is_closed:
                return
            self._outgoing += frame(message, data)
        self.flush()

    def close(self) -> None:
        """Nothing is sent any more; the descriptors are the caller's to close."""
        with self._lock:
            self._is_closed = True
            self._outgoing.clear()

    def alive(self) -> None:
        """Says so, unless something waits to be said anyway."""
        with self._lock:
            if self._outgoing:
                return
        self.say({"is": "alive"})

    def flush(self) -> None:
        """Writes what can be written."""
        with self._lock, contextlib.suppress(BlockingIOError):
            try:
                while self._outgoing:
                    del self._outgoing[: os.write(self.target, self._outgoing[:_READ_BYTES])]
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                self._outgoing.clear()

    def is_silent(self, limit_s: float) -> bool:
        """Whether nothing has come for so long. What came while we were kept from listening counts."""
        return time.monotonic() - self.heard_at > limit_s and not select.select([self.source], [], [], 0)[0]

    def hear(self) -> tuple[list[tuple[Message, bytes]], bool]:
        """What was said, and whether the other side is still there.

        Raises:
          WireError: it was none of this.
        """
        try:
            chunk = os.read(self.source, _READ_BYTES)
        except BlockingIOError:
            return [], True
        except OSError:
            chunk = b""
        if chunk:
            self.heard_at = time.monotonic()
        return (self.frames.feed(chunk) if chunk else []), bool(chunk)
