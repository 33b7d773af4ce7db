"""Agreements outside of a training step: values that worker 0 decides for all workers, or that any worker sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import ordered
from lockstep._src.engine import failure_report
from lockstep._src.engine.context import context

_Error = TypeVar("_Error", bound=BaseException)


def from_chief(value: Any, name: str) -> Any:
    """Returns worker 0's `value` on every worker. All workers must call this in the same order.

    Args:
      value: a value that JSON can represent; the other workers' values are ignored.
      name: the name of the exchange, for errors.
    """
    if context.world_size == 1:
        return value
    mine = json.dumps(value).encode() if context.rank == 0 else b""
    return json.loads(_gather(mine, name))


def on_chief(work: Callable[[], object], what: str, name: str) -> None:
    """Runs `work` on worker 0 and returns on each worker after it ended. All workers must call this in the same order.

    Args:
      work: the function that worker 0 calls.
      what: a description of the work, for errors.
      name: the name of the exchange, for errors.

    Raises:
      RuntimeError: on the other workers, if `work` failed on worker 0. Worker 0 raises the error of `work` itself.
    """
    failure = None
    if context.rank == 0:
        try:
            work()
        except Exception as error:
            failure = error
    told = from_chief(failure and f"{type(failure).__name__}: {failure}", name)
    if told is not None:
        raise failure or failed_on(0, told, RuntimeError(f"{what}: worker 0 failed: {told}"))


def failed_on(rank: int, told: str, error: _Error) -> _Error:
    """Marks an error of this worker as the consequence of one of another worker, which the launcher shows once.

    Args:
      rank: the rank of the other worker.
      told: the class of its error, a colon, and its text.
      error: this worker's error.
    """
    return failure_report.of_peer(error, f"rank {rank} failed with {told.partition(':')[0]}")


def any_worker(value: bool, name: str) -> bool:
    """Returns on every worker whether `value` is true on any worker. All workers must call this in the same order."""
    if context.world_size == 1:
        return value
    return b"1" in _gather(b"1" if value else b"0", name)


def gather_values(value: Any, name: str) -> list[Any]:
    """Returns the values of all workers, by rank. All workers must call this in the same order.

    Args:
      value: a value that JSON can represent.
      name: the name of the exchange, for errors.
    """
    if context.world_size == 1:
        return [value]
    return [json.loads(line) for line in _gather(json.dumps(value).encode() + b"\n", name).splitlines()]


def _gather(mine: bytes, name: str) -> bytes:
    """Returns the bytes of all workers, joined in the order of ranks."""
    context.ensure_initialized()
    # This uses a graph of its own: the caller's graph may be finalized, and it should not grow with each call.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        gathered = ordered.allgather(tf.constant(np.frombuffer(mine, np.uint8)), name=f"agree_{name}")
        return session.run(gathered).tobytes()
