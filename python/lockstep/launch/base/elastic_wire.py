"""The protocol between the launcher and the workers of an elastic job, and how they authenticate each other.

A worker connects to the launcher's address. Both know the job's secret from their environment; it is never sent.

    launcher: nonce                                       64 hexadecimal digits and an end of line
    worker:   nonce                                       the same
    both:     HMAC-SHA-256 of a message, the message      64 digits, a blank, JSON and an end of line; any number

The key of the HMACs is derived from the secret and both nonces. Each HMAC also covers the sender and the number of the
message. So messages of an unauthenticated peer, of another connection or in a wrong order are rejected. A message is an
object whose "is" names its kind:

    worker   ready     worker, has_state, keeps_state, port         wants a place in the next round
    launcher round     round, rank, size, local_rank, local_size, cross_rank, cross_size, host, rendezvous,
                       all_keep_state
    launcher changed   at, added, removed                           workers wait to join, or have to leave
    launcher removed   -                                            this worker has lost its place
    launcher failed    why                                          the job has ended

Workers import this module too, so it only uses the standard library.
"""

import hmac
import json
import secrets
from typing import Any

ADDRESS = "LOCKSTEP_ELASTIC"
SECRET = "LOCKSTEP_ELASTIC_SECRET"
WORKER = "LOCKSTEP_ELASTIC_WORKER"

_DIGITS = 64
# Longer than any valid message.
_MAX_LINE_BYTES = 1 << 16


class WireError(Exception):
    """An error for bytes that are not a valid message of the other side."""


class Channel:
    """One end of a connection. It does no I/O: the caller passes received bytes to `feed`, and sends `outgoing`.

    Args:
      secret: The job's secret.
      is_launcher: Whether this is the launcher's end.

    Attributes:
      outgoing: Bytes to send; the caller removes those that it has sent.
      is_known: Whether the other side has proved that it knows the secret.
    """

    def __init__(self, secret: str, is_launcher: bool):
        self._secret, self._is_launcher = secret.encode(), is_launcher
        self._nonce = secrets.token_hex(_DIGITS // 2)
        self._key: bytes | None = None
        self._said = self._heard = 0
        self._rest = b""
        self._waiting: list[dict[str, Any]] = []
        self.is_known = False
        self.outgoing = self._nonce.encode() + b"\n" if is_launcher else b""

    def say(self, message: dict[str, Any]) -> None:
        """Adds a message to `outgoing`. A worker's message waits until the launcher's nonce has come."""
        if self._key is None:
            self._waiting.append(message)
            return
        text = json.dumps(message).encode()
        self.outgoing += self._mac(self._is_launcher, self._said, text) + b" " + text + b"\n"
        self._said += 1

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Returns the messages that are complete with these bytes.

        Raises:
          WireError: the bytes break the protocol; the connection must be closed.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if any(len(line) > _MAX_LINE_BYTES for line in (*lines, self._rest)):
            raise WireError("a line without an end")
        messages = []
        for line in lines:
            if self._key is None:
                self._agree(line)
            else:
                messages.append(self._message(line))
        return messages

    def _agree(self, theirs: bytes) -> None:
        if len(theirs) != _DIGITS or theirs.strip(b"0123456789abcdef"):
            raise WireError("the first line is not a nonce")
        if not self._is_launcher:
            self.outgoing += self._nonce.encode() + b"\n"
        launchers, workers = (self._nonce.encode(), theirs) if self._is_launcher else (theirs, self._nonce.encode())
        self._key = hmac.digest(self._secret, b"lockstep elastic " + launchers + workers, "sha256")
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.say(message)

    def _message(self, line: bytes) -> dict[str, Any]:
        mac, _, text = line.partition(b" ")
        if not hmac.compare_digest(mac, self._mac(not self._is_launcher, self._heard, text)):
            raise WireError("a message with a wrong MAC")
        self._heard += 1
        self.is_known = True
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise WireError("a message is not a JSON object")
        return message

    def _mac(self, is_launcher: bool, number: int, text: bytes) -> bytes:
        assert self._key is not None  # `_agree` comes first.
        who = b"launcher" if is_launcher else b"worker"
        return hmac.new(self._key, b"%s %d " % (who, number) + text, "sha256").hexdigest().encode()


def round_secret(secret: str, number: int) -> str:
    """Returns the secret with which the workers of a round authenticate each other."""
    return hmac.new(secret.encode(), b"lockstep round %d" % number, "sha256").hexdigest()
