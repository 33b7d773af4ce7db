"""Bytes between the ranks of a group, at once and outside of the program's graphs: what Python objects travel as.

A pickled object is code to the rank that reads it, and streams between hosts carry no HMAC. These bytes carry one, with
a key of the job's secret (docs/wire_protocol.md, section 3). It covers the call, the sender, and a random number that
each rank draws for the call: a recorded message is worth nothing in another call, another rank's place or another job.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from lockstep._src.collectives import named

_NONCE_BYTES, _TAG_BYTES = 16, 32


def _outside_functions() -> contextlib.AbstractContextManager[None]:
    """Leaves functions as `tf.init_scope` does, and makes no default graph where a program of TensorFlow 1 has none.

    When there is one, it is too late for `tf.enable_eager_execution`.
    """
    return tf.init_scope() if tf.executing_eagerly() or ops.has_default_graph() else contextlib.nullcontext()


def run_now(build: Callable[[], Any]) -> Any:
    """Returns the tensors of `build()` as numpy arrays; where the program does not run eagerly, by a session."""
    with _outside_functions():
        if tf.executing_eagerly():
            return tf.nest.map_structure(lambda tensor: tensor.numpy(), build())
    # A graph of its own: the program's may be finished. A session would take the memory of GPUs.
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        return session.run(build())


class _Call:
    """One exchange of bytes: its name for the user, which is its text, and how the bytes are signed.

    Args:
      operation: what the user called, such as "broadcast_object".
      name: the same on all ranks; None: the calls of an operation are numbered.
      group: of ranks that take part.

    Attributes:
      rank: this one, in the group, from `begin` on.
    """

    def __init__(self, operation: str, name: str | None, group: int) -> None:
        self._own = f"{operation}.{named.count(operation, group)}" if name is None else f"{operation} {name}"
        self._text = operation if name is None else f"{operation} '{name}'"
        self._group = group

    def __str__(self) -> str:
        return self._text

    def part(self, what: str) -> dict[str, Any]:
        """Returns the name and the group of a part of the call in the lane."""
        return {"names": [f"{self._own}.{what}"], "group": self._group}

    def run(self, build: Callable[[], Any]) -> Any:
        """Runs as `run_now` does; errors begin with what the user called."""
        try:
            return run_now(build)
        except tf.errors.OpError as error:
            raise type(error)(error.node_def, error.op, f"{self}: {error.message}") from None

    def begin(self, *numbers: int) -> list[list[int]]:
        """Draws what the bytes of this call are signed with. Returns for each of `numbers` its value on every rank."""
        own = np.frombuffer(secrets.token_bytes(_NONCE_BYTES), np.int64)

        def gather() -> list[tf.Tensor]:
            mine = tf.constant([[*numbers, *own]], tf.int64)
            return [*named.allgather([mine], **self.part("length")), named.rank_in(self._group)]

        of_ranks, rank = self.run(gather)
        self.rank = int(rank)
        nonces = np.array(of_ranks[:, len(numbers) :])
        nonces[rank] = own
        self._key = hmac.digest(named.secret_of(self._group).encode(), b"lockstep bytes", "sha256")
        self._signed = [self._own, len(nonces)]
        self._nonces = nonces.tobytes()
        return of_ranks[:, : len(numbers)].T.tolist()

    def tag(self, sender: int, data: bytes) -> bytes:
        """Returns the HMAC that follows the bytes of a rank."""
        mac = hmac.new(self._key, json.dumps([*self._signed, sender]).encode() + self._nonces, "sha256")
        mac.update(data)
        return mac.digest()

    def checked(self, sender: int, signed: bytes) -> bytes:
        """Returns the bytes of a rank without their HMAC. DataLossError: they are not the bytes that it gave."""
        data, tag = signed[:-_TAG_BYTES], signed[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, self.tag(sender, data)):
            raise tf.errors.DataLossError(
                None,
                None,
                f"{self}: rank {self.rank} got {len(signed)} bytes in the place of those of rank {sender} that are not "
                "signed with the job's secret for this call, wanted them as they were sent; they were changed on their "
                "way, and nothing in them was looked at",
            )
        return data


def gather_bytes(
    data: bytes, *, name: str | None = None, group: int = named.ALL, operation: str = "gather_bytes"
) -> list[bytes]:
    """Returns what each rank of the group gives, by rank. All ranks have to call it.

    Args:
      data: of this rank; of any length.
      name: the same on all ranks; without it, the calls are numbered.
      group: of ranks.
      operation: what the user called, for errors and warnings; the same on all ranks.

    Raises:
      tf.errors.DataLossError: what came is not what a rank gave; names the rank.
      tf.errors.OpError: as `lockstep.named.allgather`.
    """
    call = _Call(operation, name, group)
    (lengths,) = call.begin(len(data) + _TAG_BYTES)
    own = np.frombuffer(data + call.tag(call.rank, data), np.uint8)

    def gather() -> list[tf.Tensor]:
        return named.allgather([tf.constant(own, tf.uint8)], **call.part("data"))

    (everything,) = call.run(gather)
    ends = np.cumsum(lengths)
    signed = [everything[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]
    return [call.checked(rank, part) for rank, part in enumerate(signed)]


def broadcast_bytes(
    data: bytes,
    root: int = 0,
    *,
    name: str | None = None,
    group: int = named.ALL,
    operation: str = "broadcast_bytes",
) -> bytes:
    """Returns what `root`, a rank in the group, gives. All ranks have to call it; the others' data is not looked at.

    Args:
      data: of the root.
      root: a rank in the group.
      name: as `gather_bytes`'s, as are `group` and `operation`.
      group: of ranks.
      operation: what the user called.

    Raises:
      ValueError: the ranks name different roots; on all of them, with the roots.
      tf.errors.InvalidArgumentError: there is no such rank.
      tf.errors.DataLossError: what came is not what the root gave.
      tf.errors.OpError: as `lockstep.named.broadcast`.
    """
    call = _Call(operation, name, group)
    # With the roots that ranks name: one that only some of them know of would be waited for.
    roots, lengths = call.begin(root, len(data) + _TAG_BYTES)
    if len(set(roots)) > 1:
        raise ValueError(f"{call}: the ranks name different roots, by rank: {roots}")
    if not 0 <= root < len(roots):
        raise tf.errors.InvalidArgumentError(None, None, f"{call}: root is {root}, wanted 0 to {len(roots) - 1}")
    is_root = call.rank == root
    own = np.frombuffer(data + call.tag(root, data), np.uint8) if is_root else np.zeros(lengths[root], np.uint8)

    def broadcast() -> list[tf.Tensor]:
        return named.broadcast([tf.constant(own, tf.uint8)], root, **call.part("data"))

    (received,) = call.run(broadcast)
    return data if is_root else call.checked(root, received.tobytes())
