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

from lockstep._src import named

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


def _call(kind: str, name: str | None, group: int) -> str | None:
    """What a call is called: eagerly, where the lane numbers those without a name, nothing."""
    with _outside_functions():
        eager = tf.executing_eagerly()
    return f"{kind}.{named.count(kind, group)}" if name is None and not eager else name


def _part(name: str | None, what: str) -> dict[str, list[str]]:
    return {} if name is None else {"names": [f"{name}.{what}"]}


class _Call:
    """One exchange of bytes, and how they are signed. Its text is what errors call it.

    Args:
      kind: the function.
      name: its name, if it has one.
      group: of ranks that take part.
      rank: this one, in the group.
      nonces: [R, 2] int64, a random number of each rank for this call; this rank's as it drew it.
    """

    def __init__(self, kind: str, name: str | None, group: int, rank: int, nonces: np.ndarray):
        self.rank = rank
        self._text = kind if name is None else f"{kind} '{name}'"
        self._what = [kind, name, len(nonces)]
        self._nonces = nonces.tobytes()
        self._key = hmac.digest(named.secret_of(group).encode(), b"lockstep bytes", "sha256")

    def __str__(self) -> str:
        return self._text

    def tag(self, sender: int, data: bytes) -> bytes:
        """Returns the HMAC that follows the bytes of a rank."""
        mac = hmac.new(self._key, json.dumps([*self._what, sender]).encode() + self._nonces, "sha256")
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


def _begin(kind: str, numbers: list[int], name: str | None, group: int) -> tuple[_Call, list[list[int]]]:
    """Begins a call; returns it, and for each of `numbers` its value on every rank."""
    own = np.frombuffer(secrets.token_bytes(_NONCE_BYTES), np.int64)

    def gather() -> list[tf.Tensor]:
        mine = tf.constant([[*numbers, *own]], tf.int64)
        return [*named.allgather([mine], **_part(name, "length"), group=group), named.rank_in(group)]

    of_ranks, rank = run_now(gather)
    nonces = np.array(of_ranks[:, len(numbers) :])
    nonces[rank] = own
    return _Call(kind, name, group, int(rank), nonces), of_ranks[:, : len(numbers)].T.tolist()


def gather_bytes(data: bytes, *, name: str | None = None, group: int = named.ALL) -> list[bytes]:
    """What each rank of the group gives, by rank. All ranks have to call it.

    Args:
      data: of this rank; of any length.
      name: the same on all ranks; without it, the calls are numbered.
      group: of ranks.

    Raises:
      tf.errors.DataLossError: what came is not what a rank gave; names the rank.
      tf.errors.OpError: as `lockstep.named.allgather`.
    """
    name = _call("gather_bytes", name, group)
    call, (lengths,) = _begin("gather_bytes", [len(data) + _TAG_BYTES], name, group)
    own = np.frombuffer(data + call.tag(call.rank, data), np.uint8)

    def gather() -> list[tf.Tensor]:
        return named.allgather([tf.constant(own, tf.uint8)], **_part(name, "data"), group=group)

    (everything,) = run_now(gather)
    ends = np.cumsum(lengths)
    signed = [everything[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]
    return [call.checked(rank, part) for rank, part in enumerate(signed)]


def broadcast_bytes(data: bytes, root: int = 0, *, name: str | None = None, group: int = named.ALL) -> bytes:
    """What `root`, a rank in the group, gives. All ranks have to call it; what the others give is not looked at.

    Raises:
      ValueError: the ranks name different roots; on all of them, with the roots.
      tf.errors.InvalidArgumentError: there is no such rank.
      tf.errors.DataLossError: what came is not what the root gave.
      tf.errors.OpError: as `lockstep.named.broadcast`.
    """
    name = _call("broadcast_bytes", name, group)
    # With the roots that ranks name: one that only some of them know of would be waited for.
    call, (roots, lengths) = _begin("broadcast_bytes", [root, len(data) + _TAG_BYTES], name, group)
    if len(set(roots)) > 1:
        raise ValueError(f"{call}: the ranks name different roots, by rank: {roots}")
    if not 0 <= root < len(roots):
        raise tf.errors.InvalidArgumentError(None, None, f"{call}: root is {root}, wanted 0 to {len(roots) - 1}")
    is_root = call.rank == root
    own = np.frombuffer(data + call.tag(root, data), np.uint8) if is_root else np.zeros(lengths[root], np.uint8)

    def broadcast() -> list[tf.Tensor]:
        return named.broadcast([tf.constant(own, tf.uint8)], root, **_part(name, "data"), group=group)

    (received,) = run_now(broadcast)
    return data if is_root else call.checked(root, received.tobytes())
