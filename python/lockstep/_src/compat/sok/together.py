"""Work that succeeds on all ranks or fails on all, and exchanges of numpy arrays, for dumps.

A rank that raised an error by itself would leave the others waiting for it. Here it continues to take part in the
exchanges, and `Attempt.settle` raises on all ranks. Exchanges run in graphs of their own, because the program's graph
may be finalized, and eager programs have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from lockstep._src.collectives import agreement, ordered
from lockstep._src.compat.sok import job

_Result = TypeVar("_Result")
# The classes that errors of other ranks have here; the first one that fits. RuntimeError stands for all others.
_CLASSES: tuple[type[Exception], ...] = (FileNotFoundError, OSError, ValueError, TypeError)


class Attempt:
    """Local work of all ranks that counts only if it succeeds on all of them.

    After a failure on this rank, `do` skips all further work until `settle` raises. A program therefore calls `settle`
    before it depends on a result.

    Args:
      what: a description of the work; errors begin with it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failure: Exception | None = None

    def do(self, work: Callable[..., _Result], *args: Any) -> _Result | None:
        """Calls `work` and returns its result; returns None if it fails, or if work of this rank has failed before."""
        if self._failure is None:
            try:
                return work(*args)
            except Exception as error:
                self._failure = error
        return None

    def settle(self) -> None:
        """Waits for all ranks, and raises on all of them if work of one has failed. All ranks must call this.

        Raises:
          Exception: the error of this rank's work. The other ranks raise FileNotFoundError, OSError, ValueError or
            TypeError if the error of the lowest rank that failed is one, and RuntimeError otherwise.
        """
        failure, self._failure = self._failure, None
        if not job.is_shared():
            if failure is not None:
                raise failure
            return
        mine = None if failure is None else (_class_of(failure), f"{type(failure).__name__}: {failure}")
        told = agreement.gather_values(mine, "sok_settle")
        if failure is not None:
            raise failure
        for rank, other in enumerate(told):
            if other is not None:
                kind, text = other
                raise agreement.failed_on(rank, text, _named(kind)(f"{self._what}: rank {rank} failed: {text}"))

    def on_all(self, work: Callable[..., _Result], *args: Any) -> _Result:
        """Returns the result of local work that succeeded on all ranks; `do` and `settle` in one call."""
        result = self.do(work, *args)
        self.settle()
        return result  # type: ignore[return-value]  # None only if `settle` raised, or if it is the result


def gather_values(mine: Any, name: str) -> list[Any]:
    """Returns the values of all ranks, by rank.

    Args:
      mine: this rank's value, which JSON can represent.
      name: the name of the exchange.
    """
    return agreement.gather_values(mine, name) if job.is_shared() else [mine]


def gather_counts(count: int) -> list[int]:
    """Returns the numbers of all ranks, by rank."""
    return gather_values(int(count), "sok_counts")


def check_same(what: str, mine: Any) -> None:
    """Raises ValueError, on all ranks the same, if a value of theirs differs. All ranks must call this.

    Args:
      what: a description of the value; the error begins with it.
      mine: this rank's value, which JSON can represent.
    """
    first, *others = gather_values(mine, "sok_same")
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise ValueError(f"{what}: rank {rank} got {other}, wanted {first}, as on rank 0")


def gather_arrays(array: np.ndarray) -> np.ndarray:
    """Returns on all ranks the rows [sum of n, ...] of the arrays [n, ...] of all ranks, in the order of ranks."""
    if not job.is_shared():
        return array
    with tf.Graph().as_default() as graph:
        part = tf.compat.v1.placeholder(tf.uint8, [None, _row_bytes(array)])
        gathered = ordered.allgather(part, name="sok_gather_arrays")
    with _session(graph) as session:
        received = session.run(gathered, {part: _as_bytes(array)})
    return received.reshape(-1).view(array.dtype).reshape(-1, *array.shape[1:])


class GatherToChief:
    """Gathers arrays on rank 0, one part of each rank at a time; a context manager. All ranks make it together."""

    def __init__(self) -> None:
        self._session: Any = None
        if not job.is_shared():
            return
        with tf.Graph().as_default() as graph:
            self._part = tf.compat.v1.placeholder(tf.uint8, [None, None])
            count = tf.shape(self._part, tf.int64)[:1]
            splits = tf.concat([count, tf.zeros([job.num_ranks() - 1], tf.int64)], 0)
            self._received, _ = ordered.alltoall(self._part, splits, name="sok_gather_to_chief")
        self._session = _session(graph)

    def __enter__(self) -> GatherToChief:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._session is not None:
            self._session.close()

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Returns on rank 0 the values of the arrays [n] of all ranks, in the order of ranks; on the others none.

        The arrays have one type, which may be a record.
        """
        if self._session is None:
            return array
        received = self._session.run(self._received, {self._part: _as_bytes(array)})
        return received.reshape(-1).view(array.dtype)


def _session(graph: tf.Graph) -> tf.compat.v1.Session:
    # Without this, the session would take memory of a GPU.
    return tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Returns an array [n, ...] as the bytes of its rows: [n, bytes of a row]."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.shape[0], _row_bytes(array))


def _row_bytes(array: np.ndarray) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))


def _class_of(error: Exception) -> str:
    return next((one.__name__ for one in _CLASSES if isinstance(error, one)), "")


def _named(name: str) -> type[Exception]:
    return next((one for one in _CLASSES if one.__name__ == name), RuntimeError)
