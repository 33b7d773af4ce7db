"""What workers settle among themselves outside a training step: values that worker 0 decides for all, or any does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine.context import context


def from_chief(value: Any, name: str) -> Any:
    """Worker 0's `value`, on every worker. All workers call it, in the same order.

    Args:
      value: what json can carry; only worker 0's counts.
      name: of the exchange, for errors.
    """
    if context.world_size == 1:
        return value
    mine = json.dumps(value).encode() if context.rank == 0 else b""
    return json.loads(_gather(mine, name))


def on_chief(work: Callable[[], object], what: str, name: str) -> None:
    """Has worker 0 do `work`; when this returns on any worker, it is done. All workers call it, in the same order.

    Args:
      work: called on worker 0.
      what: what it is, for errors.
      name: of the exchange, for errors.

    Raises:
      RuntimeError: worker 0 failed, on the others; what `work` raises, on worker 0.
    """
    failure = None
    if context.rank == 0:
        try:
            work()
        except Exception as error:
            failure = error
    told = from_chief(failure and f"{type(failure).__name__}: {failure}", name)
    if told is not None:
        raise failure or RuntimeError(f"{what}: worker 0 failed: {told}")


def any_worker(value: bool, name: str) -> bool:
    """Whether `value` is true on any worker; the same on every one. All workers call it, in the same order."""
    if context.world_size == 1:
        return value
    return b"1" in _gather(b"1" if value else b"0", name)


def of_all(value: Any, name: str) -> list[Any]:
    """The values of all workers, by rank. All workers call it, in the same order.

    Args:
      value: what json can carry.
      name: of the exchange, for errors.
    """
    if context.world_size == 1:
        return [value]
    return [json.loads(line) for line in _gather(json.dumps(value).encode() + b"\n", name).splitlines()]


def _gather(mine: bytes, name: str) -> bytes:
    """What all workers give, in the order of ranks."""
    context.ensure_initialized()
    # A graph of its own: the caller's may be finalized, and is not to grow by this.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        gathered = ordered.allgather(tf.constant(np.frombuffer(mine, np.uint8)), name=f"agree_{name}")
        return session.run(gathered).tobytes()
