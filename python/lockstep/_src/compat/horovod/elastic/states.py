"""States that the processes of an elastic job have in common.

Nothing here needs TensorFlow's operations: an argument sends objects around.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterable
from typing import Any

from lockstep._src.compat.horovod.elastic.notifications import HostUpdateResult
from lockstep._src.compat.horovod.exceptions import HostsUpdatedInterrupt

_PUBLIC_MODULE = "horovod.common.elastic"


class State:
    """A state in the memory of each process of a job: saved, restored, and sent from rank 0 to the others.

    Args:
      bcast_object: gives rank 0's argument on all ranks.
      get_rank: gives this process's rank.
    """

    __module__ = _PUBLIC_MODULE

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, HostUpdateResult]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Registers functions to call when the job has changed, before the state is sent around.

        They adapt the program to another size.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapts to the changed job, in which this process has its place now."""
        # Earlier news is part of the change.
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Receives news of other hosts, on any thread. Later timestamps are larger."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, and looks for changes of hosts. All ranks call it together.

        Once it has returned on one rank, the saved state survives the loss of any processes but all.

        Raises:
          HostsUpdatedInterrupt: see `check_host_updates`.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if rank 0 has news of other hosts. All ranks call it together."""
        before = latest = self._last_updated_timestamp
        result = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > before:
                latest = max(latest, timestamp)
                result |= update
        before, self._last_updated_timestamp, result = self._bcast_object((before, latest, result))
        if self._last_updated_timestamp > before:
            raise HostsUpdatedInterrupt(result == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps the present state in the host's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Copies the state of rank 0 to all ranks, and saves it. All ranks call it together."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts a subclass to a changed job, before callbacks and `sync`; does nothing by default."""


class ObjectState(State):
    """Python objects as attributes: each argument by name becomes one, and part of the state.

    The state saves copies, so that it also restores objects that are changed in place.

    Args:
      bcast_object: gives rank 0's argument on all ranks.
      get_rank: gives this process's rank.
      **kwargs: the objects; fit for `copy.deepcopy` and for pickle.
    """

    __module__ = _PUBLIC_MODULE

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any):
        self._names = tuple(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = copy.deepcopy(kwargs)
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        """Keeps copies of the objects."""
        self._saved_state = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Replaces the objects by copies of the saved ones."""
        self._set(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Replaces the objects of all ranks by rank 0's present ones, and saves them."""
        if self._names:
            self._set(self._bcast_object(self._values()))
        ObjectState.save(self)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
