"""State that the processes of an elastic job have in common, and the loop that keeps it through changes of the job.

docs/horovod_elastic.md is the manual. Nothing here needs TensorFlow's operations: how an object is sent around is an
argument.
"""

from __future__ import annotations

import copy
import functools
import os
import queue
from collections.abc import Callable, Iterable
from typing import Any

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult
from lockstep.launch.base.elastic_wire import ADDRESS

__all__ = ["HostUpdateResult", "ObjectState", "State", "notification_manager", "run_fn"]


class WorkerNotificationManager:
    """Hands the launcher's news of hosts to states."""

    def __init__(self) -> None:
        self._listeners: dict[State, Callable[[Any], None]] = {}

    def init(self) -> None:
        """Nothing is left to be done: a job is listened to when the first state is."""

    def register_listener(self, listener: State) -> None:
        """From here on the state's `on_hosts_updated` is called, in an elastic job."""
        worker = _member()
        if worker is None or listener in self._listeners:
            return

        def hear(change: Any) -> None:
            result = HostUpdateResult.no_update
            result |= HostUpdateResult.added if change.added else HostUpdateResult.no_update
            result |= HostUpdateResult.removed if change.removed else HostUpdateResult.no_update
            listener.on_hosts_updated(change.at, result)

        self._listeners[listener] = hear
        worker.listen(hear)

    def remove_listener(self, listener: State) -> None:
        """Ends that."""
        hear = self._listeners.pop(listener, None)
        if hear is not None:
            _member().unlisten(hear)


notification_manager = WorkerNotificationManager()


def _member() -> Any:
    """The worker of an elastic job that this process is; None outside of one."""
    if ADDRESS not in os.environ:
        return None
    from lockstep import elastic  # Loads TensorFlow.

    return elastic.member()


class State:
    """State in the memory of each process of a job: saved, restored, and sent from rank 0 to the others.

    Args:
      bcast_object: gives rank 0's argument on all ranks.
      get_rank: gives this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, HostUpdateResult]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has functions called when the job has changed, before the state is sent around: to adapt to another size."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when this process has its place in the changed job."""
        # What was said before is part of the change.
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Called, on any thread, when there are other hosts. Later timestamps are larger."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, and looks for changes of hosts. All ranks call it together.

        When it has returned on one rank, what was saved is safe from the loss of any but all processes.

        Raises:
          HostsUpdatedInterrupt: see `check_host_updates`.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks when rank 0 was told of other hosts. All ranks call it together."""
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
        """Keeps the state as it is, in the host's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Makes the state what it was when it was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the state that of rank 0, and saves it. All ranks call it together."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the job has changed, before callbacks and `sync`; does nothing unless a subclass does."""


class ObjectState(State):
    """Python objects as attributes: each argument by name becomes one, and part of the state.

    What is saved are copies: an object that is changed in place is restored as well.

    Args:
      bcast_object: gives rank 0's argument on all ranks.
      get_rank: gives this process's rank.
      **kwargs: the objects; fit for `copy.deepcopy` and for pickle.
    """

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
        """Puts copies of what was saved in the objects' places."""
        self._set(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Puts rank 0's objects, as they are now, in the places of all, and saves them."""
        if self._names:
            self._set(self._bcast_object(self._values()))
        ObjectState.save(self)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], None],
    has_lost_peers: Callable[[Exception], bool] = lambda error: False,
) -> Callable[..., Any]:
    """A function that calls another one with synchronized state, again after each change of the job.

    Args:
      func: its first argument is a State.
      reset: leaves the job, and joins it as it is then.
      has_lost_peers: whether an exception is to be taken for HorovodInternalError.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        worker = _member()
        notification_manager.init()
        notification_manager.register_listener(state)
        keeps_state = has_changed = False
        try:
            while True:
                try:
                    # What the program does in a changed job may lose a peer as well.
                    if has_changed:
                        state.on_reset()
                    if not keeps_state:
                        state.sync()
                    if worker is not None:
                        worker.has_state = True
                    return func(state, *args, **kwargs)
                except HostsUpdatedInterrupt as interrupt:
                    keeps_state = interrupt.skip_sync
                except Exception as error:
                    if not isinstance(error, HorovodInternalError) and not has_lost_peers(error):
                        raise
                    state.restore()
                    keeps_state = False
                if worker is not None:
                    worker.keeps_state = keeps_state
                reset()
                has_changed = True
                # Whether the state is sent around is the same on all ranks.
                keeps_state = keeps_state and (worker is None or worker.place.all_keep_state)
        finally:
            notification_manager.remove_listener(state)

    return wrapper
