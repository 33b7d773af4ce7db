"""Bytes between the ranks of a group, at once and outside of the program's graphs: what Python objects travel as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src import named


def run_now(build: Callable[[], Any]) -> Any:
    """What the tensors of `build()` are, as numpy arrays: eagerly, or where the program does without, in a session."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return tf.nest.map_structure(lambda tensor: tensor.numpy(), build())
    # A graph of its own: the program's may be finished. A session would take the memory of GPUs.
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        return session.run(build())


def _call(kind: str, name: str | None, group: int) -> str | None:
    """What a call is called: eagerly, where the lane numbers those without a name, nothing."""
    with tf.init_scope():
        eager = tf.executing_eagerly()
    return f"{kind}.{named.count(kind, group)}" if name is None and not eager else name


def _part(name: str | None, what: str) -> dict[str, list[str]]:
    return {} if name is None else {"names": [f"{name}.{what}"]}


def gather_bytes(data: bytes, *, name: str | None = None, group: int = named.ALL) -> list[bytes]:
    """What each rank of the group gives, by rank. All ranks have to call it.

    Args:
      data: of this rank; of any length.
      name: the same on all ranks; without it, the calls are numbered.
      group: of ranks.

    Raises:
      tf.errors.OpError: as `lockstep.named.allgather`.
    """
    name = _call("gather_bytes", name, group)
    own = np.frombuffer(data, np.uint8)

    def gather() -> list[tf.Tensor]:
        (lengths,) = named.allgather([tf.constant([len(own)], tf.int64)], **_part(name, "length"), group=group)
        (everything,) = named.allgather([tf.constant(own, tf.uint8)], **_part(name, "data"), group=group)
        return [lengths, everything]

    lengths, everything = run_now(gather)
    ends = np.cumsum(lengths)
    return [everything[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]


def broadcast_bytes(data: bytes, root: int = 0, *, name: str | None = None, group: int = named.ALL) -> bytes:
    """What `root`, a rank in the group, gives. All ranks have to call it; what the others give is not looked at.

    Raises:
      ValueError: the ranks name different roots; on all of them, with the roots.
      tf.errors.InvalidArgumentError: there is no such rank.
      tf.errors.OpError: as `lockstep.named.broadcast`.
    """
    name = _call("broadcast_bytes", name, group)
    what = "broadcast_bytes" if name is None else f"broadcast_bytes '{name}'"

    def gather_lengths() -> list[tf.Tensor]:
        # And the roots that ranks name: one that only some of them know of would be waited for.
        own = tf.constant([[root, len(data)]], tf.int64)
        return [*named.allgather([own], **_part(name, "length"), group=group), named.rank_in(group)]

    of_ranks, rank = run_now(gather_lengths)
    roots = of_ranks[:, 0].tolist()
    if len(set(roots)) > 1:
        raise ValueError(f"{what}: the ranks name different roots, by rank: {roots}")
    if not 0 <= root < len(roots):
        raise tf.errors.InvalidArgumentError(None, None, f"{what}: root is {root}, wanted 0 to {len(roots) - 1}")
    is_root = rank == root
    own = np.frombuffer(data, np.uint8) if is_root else np.zeros(of_ranks[root, 1], np.uint8)

    def broadcast() -> list[tf.Tensor]:
        return named.broadcast([tf.constant(own, tf.uint8)], root, **_part(name, "data"), group=group)

    (received,) = run_now(broadcast)
    return data if is_root else received.tobytes()
