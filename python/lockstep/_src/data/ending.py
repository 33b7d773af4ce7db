"""Ends training with the step of the last batch, rather than with an error in the step after it.

Iterators for training know with each batch whether it is the job's last one (`sync.py`). If the caller's run takes a
batch, a session hook fetches this fact in the same run. After the last batch the hook stops the session.

    while not session.should_stop():    # false after the last batch
        session.run(train_op)
    session.run(what_is_left_to_do)     # in the same session

The decision depends on the batches that the caller's runs take. The hook finds them by walking through the graph from
the fetches of each run; it never fetches anything that would take a batch by itself. A session stops when every kind
of run that took batches so far has reached the end of one of its iterators. The session therefore continues when only
a smaller dataset, for example one for validation, has ended.

The session also continues when an iterator that has ended is initialized again, or is asked for another batch. Such a
program relies on `OutOfRangeError`, and it receives this error exactly where it would without the hook. The hook does
not see batches that are taken in the body of a loop, in functions, or only by the fetches of other hooks. There, too,
`OutOfRangeError` ends the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as client

from lockstep._src.graph.ancestry import ancestors

# The key is not a string, so that exported graphs omit the collection.
_ENDINGS = ("lockstep", "endings")
# The number of different fetches of a session that are remembered.
_REMEMBERED = 64

# An iterator: the name of its resource and its handle. An iterator that takes a handle counts as a different source for
# each handle; others have None.
_Source = tuple[str, Any]


@dataclasses.dataclass(frozen=True)
class _Ending:
    """A batch that a graph takes, and whether it is the last one.

    Attributes:
      iterator: the iterator's resource.
      taken_by: the operation that takes the batch.
      last: bool scalar, true if the batch is the last one.
    """

    iterator: tf.Tensor
    taken_by: tf.Operation
    last: tf.Tensor

    def source(self, feeds: dict[Any, Any]) -> _Source:
        op = self.iterator.op
        handle = feeds.get(op.inputs[0].name) if op.type.startswith("IteratorFromStringHandle") else None
        return self.iterator.name, np.asarray(handle).item()


@dataclasses.dataclass(frozen=True)
class _Run:
    """The effects of fetching something: the batches it takes, one per iterator, and the iterators it initializes."""

    fetched: tuple[Any, ...]  # held, so that Python does not give their ids to other objects
    endings: tuple[_Ending, ...]
    initialized: frozenset[str]


def note(iterator: tf.Tensor, taken_by: tf.Operation, last: tf.Tensor) -> None:
    """Registers a batch in the graph, so that sessions of the job learn whether it is the last; see `_Ending`."""
    tf.compat.v1.add_to_collection(_ENDINGS, _Ending(iterator, taken_by, last))


class EndOfDataHook(tf.compat.v1.train.SessionRunHook):
    """Stops a `MonitoredTrainingSession` when its data has ended."""

    # Its decision depends only on facts that are the same on all workers.
    stops_alike = True

    def begin(self) -> None:
        """Clears all state for a new session's graph."""
        self._runs: dict[Any, _Run] = {}
        self._kinds: set[frozenset[_Source]] = set()
        self._ended: set[_Source] = set()
        self._asked = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Clears what was learned from earlier sessions; runs also after a session was recovered from a failure."""
        self._coord = coord
        self._asked = False
        self._kinds.clear()
        self._ended.clear()
        self._endings = session.graph.get_collection(_ENDINGS)

    def before_run(self, run_context: Any) -> Any:
        """Fetches for each batch that the run takes whether it is the last."""
        if not self._endings:
            return None
        feeds = fed(run_context)
        self._run = self._meaning(run_context, frozenset(feeds))
        self._taken = [ending.source(feeds) for ending in self._run.endings]
        if not self._run.initialized:
            self._revive(source for source in self._taken if source in self._ended)
        if not self._taken:
            return None
        return tf.compat.v1.train.SessionRunArgs([ending.last for ending in self._run.endings])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops the session, or lets it continue."""
        del run_context
        if not self._endings:
            return
        initialized = self._run.initialized
        own = {ending.iterator.name for ending in self._endings}
        # The hook cannot know the iterator behind a handle. If another iterator is initialized, it may be that one.
        others = not initialized <= own
        self._revive(source for source in self._ended if source[0] in initialized or (others and source[1] is not None))
        if self._taken:
            self._kinds.add(frozenset(self._taken))
            last = run_values.results
            self._ended.update(source for source, is_last in zip(self._taken, last, strict=True) if is_last)
        self._decide()

    def _revive(self, sources: Iterable[_Source]) -> None:
        self._ended -= set(sources)
        self._decide()

    def _decide(self) -> None:
        stop = bool(self._kinds) and all(kind & self._ended for kind in self._kinds)
        if stop and not self._coord.should_stop():
            self._coord.request_stop()
            self._asked = True
        elif self._asked and not stop:
            self._coord.clear_stop()
            self._asked = False

    def _meaning(self, run_context: Any, feeds: frozenset[str]) -> _Run:
        elements = fetched(run_context)
        key = (tuple(map(id, elements)), feeds)
        if key not in self._runs:
            if len(self._runs) == _REMEMBERED:
                self._runs.clear()
            run = set(ancestors(elements, feeds))
            self._runs[key] = _Run(
                elements,
                tuple(ending for ending in self._endings if ending.taken_by in run),
                frozenset(op.inputs[1].name for op in run if op.type == "MakeIterator"),
            )
        return self._runs[key]


def fetched(run_context: Any) -> tuple[Any, ...]:
    """Returns the tensors and operations that a session's run fetches for its caller."""
    handler = client._FetchHandler(run_context.session.graph, run_context.original_args.fetches, {})
    return (*handler.fetches(), *handler.targets())


def fed(run_context: Any) -> dict[str, Any]:
    """Returns the values that the caller feeds to a session's run, by the names of tensors."""
    feeds = run_context.original_args.feed_dict or {}
    return {key if isinstance(key, str) else getattr(key, "name", ""): value for key, value in feeds.items()}
