r"""The protocol between a launcher and its agent on another host, over the agent's standard input and output.

The program that started the agent (ssh, srun) carries the bytes, and has authenticated both sides. The agent begins
with a line, `MARK`; both sides skip anything that a login shell prints before it. Then both send frames:

    4 bytes  length of the message, big endian
    4 bytes  length of the data
    message  a JSON object, whose "is" names its kind
    data     bytes that belong to the message

    launcher  prepare  folder, interface, meets, name, others, silence_s    the first message: can the agent do it?
    agent     ready    pid, host, port          yes; if `meets`, with the address at which rank 0 is reached
    agent     refused  why, code                no; the agent ends
    launcher  file     name + data              a part of a file for the workers, in the folder of LOCKSTEP_CALL
    launcher  start    command, environment, assigns_gpus, workers     starts all workers, each with its variables
    launcher  add      rank, command, environment, variables, of_host    starts one more worker of an elastic job; all
                                                messages carry its number in the job instead of its rank
    agent     started  rank, pid
    agent     output   rank, of + data          what a worker wrote to stdout (1), stderr (2) or its notes (3: `notes`)
    agent     file     name + data              a part of a file that a worker left in that folder
    agent     ended    rank, code               a negative code is a signal
    agent     said     text                     for the user
    launcher  signal   rank, number             for a worker's process group
    launcher  end                               end all workers
    agent     done                              all workers have ended, and all messages have been sent
    both      alive                             sent regularly: a side that receives nothing for silence_s ends the
                                                workers
"""

import contextlib
import json
import os
import select
import selectors
import struct
import threading
import time
from typing import Any

MARK = b"lockstep agent 2\n"
# Longer than the workers' own 8 s (LOCKSTEP_SILENCE_TIMEOUT), because their errors name the operation. TCP may repeat a
# packet after 3.2 s and next after 6.4 s. So a network that is cut for 5 s is silent for up to 7 s, and the time
# between two `alive` messages comes on top.
SILENCE_S = 8.5
ALIVE_EVERY_S = 0.25
# The longest part of a file, or of output.
DATA_BYTES = 1 << 18
_HEAD = struct.Struct("!II")
# The longest message is an environment, which Linux limits to some MiB.
_MAX_MESSAGE_BYTES = 16 << 20
_MAX_NOISE_BYTES = 1 << 16
_READ_BYTES = 1 << 18

Message = dict[str, Any]


class WireError(Exception):
    """An error for bytes that are not a valid frame, or not a message of the other side."""


def frame(message: Message, data: bytes = b"") -> bytes:
    """Returns the bytes of a frame."""
    text = json.dumps(message).encode()
    return _HEAD.pack(len(text), len(data)) + text + data


class Frames:
    """A parser that cuts received bytes into frames.

    Args:
      mark: The line before the first frame; empty: there is no such line.

    Attributes:
      noise: The bytes before the mark.
    """

    def __init__(self, mark: bytes = b""):
        self._mark, self._rest = mark, bytearray()
        self.noise = b""

    @property
    def has_begun(self) -> bool:
        """Whether the mark has been received."""
        return not self._mark

    def feed(self, chunk: bytes) -> list[tuple[Message, bytes]]:
        """Returns the frames that are complete with these bytes: messages with their data.

        Raises:
          WireError: the bytes are not a frame, or a frame is too long.
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
            raise WireError(f"more than {_MAX_NOISE_BYTES} bytes before the agent's first line")
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
        raise WireError("a frame whose message is not an object with its kind")
    return message


def field(message: Message, name: str, kind: type) -> Any:
    """Returns a field of a message.

    Raises:
      WireError: it is missing, or of another type.
    """
    value = message.get(name)
    if type(value) is not kind:
        raise WireError(f"{message['is']}: {name} is {str(value)[:80]!r}, wanted {kind.__name__}")
    return value


class Link:
    """One end of a connection. No method blocks: bytes that cannot be written yet are kept.

    `say`, `alive` and `close` are thread safe.

    Args:
      source: File descriptor that is read.
      target: File descriptor that is written.
      mark: As in `Frames`.

    Attributes:
      heard_at: When bytes were last received, by time.monotonic.
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
        """Sends a message, now or by `flush`. The end of the connection is noticed by `hear`."""
        with self._lock:
            if self._is_closed:
                return
            self._outgoing += frame(message, data)
        self.flush()

    def close(self) -> None:
        """Stops sending. The caller closes the file descriptors."""
        with self._lock:
            self._is_closed = True
            self._outgoing.clear()

    def alive(self) -> None:
        """Sends that this side is alive, unless another message waits to be sent."""
        with self._lock:
            if self._outgoing:
                return
        self.say({"is": "alive"})

    def flush(self) -> None:
        """Writes as many bytes as the descriptor takes."""
        with self._lock, contextlib.suppress(BlockingIOError):
            try:
                while self._outgoing:
                    del self._outgoing[: os.write(self.target, self._outgoing[:_READ_BYTES])]
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                self._outgoing.clear()

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Has a selector call `flush` when bytes that wait can be written."""
        is_watched = self.target in selector.get_map()
        if self.waiting and not is_watched:
            selector.register(self.target, selectors.EVENT_WRITE, lambda events: self.flush())
        elif is_watched and not self.waiting:
            selector.unregister(self.target)

    def is_silent(self, limit_s: float) -> bool:
        """Returns whether nothing was received for so long. Bytes that wait to be read count as received."""
        return time.monotonic() - self.heard_at > limit_s and not select.select([self.source], [], [], 0)[0]

    def hear(self) -> tuple[list[tuple[Message, bytes]], bool]:
        """Returns the messages that have arrived, and whether the connection is still open.

        Raises:
          WireError: the bytes are not messages.
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
