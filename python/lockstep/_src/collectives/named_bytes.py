"""Exchanges of bytes between the ranks of a group, outside of the program's graphs; Python objects travel this way.

A pickled object is code to the rank that reads it, and large data between hosts carries no proof. Therefore these
bytes carry an HMAC, with a key that is derived from the job's secret (docs/wire_protocol.md, section 3). The HMAC
covers the call, the sender, and a random number that each rank draws for the call. So a recorded message is not
accepted in another call, in the place of another rank, or in another job.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import ops

from lockstep._src.collectives import named

_NONCE_BYTES, _TAG_BYTES = 16, 32
# The most bytes that a rank may announce: memory for them is taken before they come.
_MOST_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _outside_functions() -> contextlib.AbstractContextManager[None]:
    """Leaves functions as `tf.init_scope` does, but creates no default graph if a program of TensorFlow 1 has none.

    Once a default graph exists, `tf.enable_eager_execution` fails.
    """
    return tf.init_scope() if tf.executing_eagerly() or ops.has_default_graph() else contextlib.nullcontext()


def _has_used_devices() -> bool:
    """Returns whether an eager operation has run: after the first, a program cannot change settings of its devices."""
    return eager_context.context()._context_handle is not None


def run_now(build: Callable[[], Any]) -> Any:
    """Returns the tensors of `build()` as numpy arrays; a program that is not eager runs them in a session.

    So does an eager program that has used no device yet: it may still choose its GPU, or let its memory grow.
    """
    with _outside_functions():
        if tf.executing_eagerly() and _has_used_devices():
            return tf.nest.map_structure(lambda tensor: tensor.numpy(), build())
    # This uses a graph of its own, as the program's may be finalized. The session takes no memory of GPUs.
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        return session.run(build())


class _Call:
    """One exchange of bytes: its name in the lane, its name in errors (its `str`), and the signature of its bytes.

    Args:
      operation: the function that the user called, such as "broadcast_object".
      name: the same on all ranks; if it is None, the calls of an operation are numbered.
      group: the group of ranks that take part.

    Attributes:
      rank: the rank of this process in the group; set by `begin`.
    """

    def __init__(self, operation: str, name: str | None, group: int) -> None:
        self._own = f"{operation}.{named.count(operation, group)}" if name is None else f"{operation} {name}"
        self._text = operation if name is None else f"{operation} '{name}'"
        self._group = group

    def __str__(self) -> str:
        return self._text

    def part(self, what: str) -> dict[str, Any]:
        """Returns the arguments for the lane, name and group, of a part of this call."""
        return {"names": [f"{self._own}.{what}"], "group": self._group}

    def run(self, build: Callable[[], Any]) -> Any:
        """Runs `build` as `run_now` does; errors begin with the name of the user's call."""
        try:
            return run_now(build)
        except tf.errors.OpError as error:
            raise type(error)(error.node_def, error.op, f"{self}: {error.message}") from None

    def begin(self, *numbers: int) -> list[list[int]]:
        """Draws the random numbers that sign this call's bytes; returns the values of each of `numbers` by rank.

        The last number is the length of a rank's bytes with their tag.

        Raises:
          tf.errors.DataLossError: a rank sends another number of numbers, or an impossible length.
        """
        own = np.frombuffer(secrets.token_bytes(_NONCE_BYTES), np.int64)

        def gather() -> list[tf.Tensor]:
            mine = tf.constant([[*numbers, *own]], tf.int64)
            return [
                *named.allgather([mine], **self.part("length")),
                named.rank_in(self._group),
                named.size_of(self._group),
            ]

        of_ranks, rank, size = self.run(gather)
        self.rank = int(rank)
        if len(of_ranks) != size:
            raise tf.errors.DataLossError(
                None, None, f"{self}: rank {rank} got the lengths of {len(of_ranks)} ranks, wanted {size}"
            )
        for sender, length in enumerate(of_ranks[:, len(numbers) - 1].tolist()):
            if not _TAG_BYTES <= length <= _MOST_BYTES:
                raise tf.errors.DataLossError(
                    None,
                    None,
                    f"{self}: rank {sender} announces {length} bytes to rank {rank}, wanted {_TAG_BYTES} to "
                    f"{_MOST_BYTES}, the memory of this machine",
                )
        nonces = np.array(of_ranks[:, len(numbers) :])
        nonces[rank] = own
        self._key = hmac.digest(named.secret_of(self._group).encode(), b"lockstep bytes", "sha256")
        self._signed = [self._own, len(nonces)]
        self._nonces = nonces.tobytes()
        return of_ranks[:, : len(numbers)].T.tolist()

    def tag(self, sender: int, data: bytes) -> bytes:
        """Returns the HMAC that follows the bytes of the rank `sender`."""
        mac = hmac.new(self._key, json.dumps([*self._signed, sender]).encode() + self._nonces, "sha256")
        mac.update(data)
        return mac.digest()

    def checked(self, sender: int, signed: bytes) -> bytes:
        """Returns the bytes of a rank without their HMAC; raises DataLossError if they differ from the sent bytes."""
        data, tag = signed[:-_TAG_BYTES], signed[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, self.tag(sender, data)):
            raise tf.errors.DataLossError(
                None,
                None,
                f"{self}: rank {self.rank} got {len(signed)} bytes from rank {sender} with a wrong signature, wanted "
                "one by the job's secret for this call. The bytes were changed on the way; they were not interpreted. "
                "Check the network between the hosts",
            )
        return data


def gather_bytes(
    data: bytes, *, name: str | None = None, group: int = named.ALL, operation: str = "gather_bytes"
) -> list[bytes]:
    """Returns the bytes of all ranks of the group, by rank. All ranks of the group must call this.

    Args:
      data: the bytes of this rank, of any length.
      name: the same on all ranks; without it, the calls are numbered.
      group: the group of ranks.
      operation: the function that the user called, for errors and warnings; the same on all ranks.

    Raises:
      tf.errors.DataLossError: the received bytes are not those that a rank sent, or it announces more than fits into
        memory; the message names the rank.
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
    """Returns the bytes of `root`, a rank in the group. All ranks must call this; other ranks' bytes are ignored.

    Args:
      data: the bytes of the root.
      root: the rank in the group that sends.
      name: the same on all ranks; without it, the calls are numbered.
      group: the group of ranks.
      operation: the function that the user called, for errors and warnings; the same on all ranks.

    Raises:
      ValueError: the ranks name different roots. All ranks raise this error, which lists the roots.
      tf.errors.InvalidArgumentError: the group has no rank `root`.
      tf.errors.DataLossError: the received bytes are not those that the root sent.
      tf.errors.OpError: as `lockstep.named.broadcast`.
    """
    call = _Call(operation, name, group)
    # The ranks compare roots first; otherwise a root that only some of them name would be waited for.
    roots, lengths = call.begin(root, len(data) + _TAG_BYTES)
    if len(set(roots)) > 1:
        raise ValueError(f"{call}: the ranks name different roots, by rank: {roots}; pass the same root on all ranks")
    if not 0 <= root < len(roots):
        raise tf.errors.InvalidArgumentError(None, None, f"{call}: root is {root}, wanted 0 to {len(roots) - 1}")
    is_root = call.rank == root
    own = np.frombuffer(data + call.tag(root, data), np.uint8) if is_root else np.zeros(lengths[root], np.uint8)

    def broadcast() -> list[tf.Tensor]:
        return named.broadcast([tf.constant(own, tf.uint8)], root, **call.part("data"))

    (received,) = call.run(broadcast)
    return data if is_root else call.checked(root, received.tobytes())
