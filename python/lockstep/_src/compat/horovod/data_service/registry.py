"""The registry of a compute job: its dispatchers and workers, and the threads that wait for them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from lockstep._src.compat.horovod.data_service.errors import FAILED, ComputeJobError, TimeoutException

# The period, in seconds, in which a waiting thread checks that its client is still connected.
_CHECK_EVERY_S = 0.5


class Registry:
    """The state of the dispatchers, their workers and readers, and of the job's end. It is thread safe.

    Args:
      dispatchers: the number of dispatchers; their ids are 0 to `dispatchers` - 1.
      workers_per_dispatcher: the number of workers of each dispatcher.
    """

    def __init__(self, dispatchers: int, workers_per_dispatcher: int):
        if dispatchers <= 0:
            raise ValueError(f"The number of dispatchers must be larger than 0: {dispatchers}")
        if workers_per_dispatcher <= 0:
            raise ValueError(f"The number of workers per dispatcher must be larger than 0: {workers_per_dispatcher}")
        self._workers_per_dispatcher = workers_per_dispatcher
        self._changed = threading.Condition()
        # _changed guards all attributes below.
        self._addresses: list[str | None] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._stopped: list[set[int]] = [set() for _ in range(dispatchers)]
        self._users: list[set[int]] = [set() for _ in range(dispatchers)]
        self._retired: set[int] = set()
        self._failure: str | None = None
        self._is_shut_down = False

    def check(self) -> None:
        """Checks that the job runs. Raises ComputeJobError if it has failed, or is ending."""
        with self._changed:
            self._check_failure()
            if self._is_shut_down:
                raise ComputeJobError("the compute job was shut down")

    def register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        """Stores the address of a dispatcher; a second call with the same address changes nothing.

        Raises:
          IndexError: there is no such dispatcher.
          ValueError: the dispatcher already has another address.
        """
        with self._dispatcher(dispatcher_id):
            known = self._addresses[dispatcher_id]
            if known is not None and known != address:
                raise ValueError(
                    f"Dispatcher with id {dispatcher_id} has already been registered under different address "
                    f"{known}: {address}"
                )
            self._addresses[dispatcher_id] = address

    def wait_for_dispatcher(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> str:
        """Waits until a dispatcher has registered, and returns its address.

        Args:
          dispatcher_id: the dispatcher's number, from 0.
          timeout_s: the longest wait, in seconds.
          is_wanted: returns whether the client that asked is still connected.

        Raises:
          IndexError: there is no such dispatcher.
          TimeoutException: the dispatcher has not registered in time.
          ComputeJobError: the job has failed or ended during the wait.
          ConnectionError: the client that asked is gone.
        """
        with self._dispatcher(dispatcher_id):
            self._wait(
                lambda: self._addresses[dispatcher_id] is not None,
                timeout_s,
                is_wanted,
                waiting_for=f"dispatcher {dispatcher_id} to register",
                slow="the dispatcher",
            )
            return str(self._addresses[dispatcher_id])

    def register_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Stores that a worker of a dispatcher is ready. Raises IndexError if there is no such dispatcher."""
        with self._dispatcher(dispatcher_id):
            self._workers[dispatcher_id].add(worker_id)

    def wait_for_workers(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        """Waits until all workers of a dispatcher are ready; arguments and errors as in `wait_for_dispatcher`."""
        with self._dispatcher(dispatcher_id):
            self._wait(
                lambda: len(self._workers[dispatcher_id]) >= self._workers_per_dispatcher,
                timeout_s,
                is_wanted,
                waiting_for=f"workers for dispatcher {dispatcher_id} to register",
                slow="the workers",
            )

    def wait_for_end_of_work(self, dispatcher_id: int, is_wanted: Callable[[], bool]) -> bool:
        """Waits until a dispatcher retires or the job has to end; returns true if the job has to end.

        Raises the errors of `wait_for_shutdown`.
        """
        with self._changed:
            while not self._is_shut_down and dispatcher_id not in self._retired:
                self._check_failure()
                self._wait_once(is_wanted, None)
            self._check_failure()
            return self._is_shut_down

    def retire_dispatcher(self, dispatcher_id: int) -> None:
        """Announces the end of a dispatcher, so that its workers end first. Raises IndexError if it does not exist."""
        with self._dispatcher(dispatcher_id):
            self._retired.add(dispatcher_id)

    def end_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Stores that a worker has stopped. Raises IndexError if there is no such dispatcher."""
        with self._dispatcher(dispatcher_id):
            self._stopped[dispatcher_id].add(worker_id)

    def wait_until_stopped(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        """Waits until the workers of a dispatcher have stopped, also while the job ends.

        Arguments and errors are the same as in `wait_for_dispatcher`.
        """
        with self._dispatcher(dispatcher_id):
            self._wait(
                lambda: self._workers[dispatcher_id] <= self._stopped[dispatcher_id],
                timeout_s,
                is_wanted,
                waiting_for=f"workers for dispatcher {dispatcher_id} to stop",
                slow="the workers",
                until_the_end=True,
            )

    def begin_use(self, dispatcher_id: int, rank: int) -> None:
        """Stores that a training rank reads from a dispatcher. Raises IndexError if there is no such dispatcher."""
        with self._dispatcher(dispatcher_id):
            self._users[dispatcher_id].add(rank)

    def end_use(self, dispatcher_id: int, rank: int) -> None:
        """Stores that a training rank no longer reads. Raises IndexError if there is no such dispatcher."""
        with self._dispatcher(dispatcher_id):
            self._users[dispatcher_id].discard(rank)

    def wait_until_unused(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        """Waits until no rank reads from a dispatcher; arguments and errors as in `wait_for_dispatcher`."""
        with self._dispatcher(dispatcher_id):
            self._wait(
                lambda: not self._users[dispatcher_id],
                timeout_s,
                is_wanted,
                waiting_for=f"training ranks to leave dispatcher {dispatcher_id}",
                slow="them",
            )

    def wait_for_shutdown(self, is_wanted: Callable[[], bool]) -> None:
        """Waits, without a limit, until the job has to end.

        Raises:
          ComputeJobError: the job has failed.
          ConnectionError: the client that asked is gone.
        """
        with self._changed:
            while not self._is_shut_down:
                self._check_failure()
                self._wait_once(is_wanted, None)
            self._check_failure()

    def shutdown(self) -> None:
        """Notifies all waiting threads that the job ends."""
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Notifies all waiting threads, now and later, that the job has failed.

        Only the first reason is kept. After the job's end, the call has no effect.
        """
        with self._changed:
            if not self._is_shut_down:
                self._failure = self._failure or reason
                self._changed.notify_all()

    @contextlib.contextmanager
    def _dispatcher(self, dispatcher_id: int) -> Iterator[None]:
        """Holds the lock inside the block, and then wakes the waiting threads; IndexError for an unknown dispatcher."""
        last = len(self._addresses) - 1
        if not 0 <= dispatcher_id <= last:
            raise IndexError(f"Dispatcher id must be within [0..{last}]: {dispatcher_id}")
        with self._changed:
            yield
            self._changed.notify_all()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise ComputeJobError(FAILED + self._failure)

    def _wait(
        self,
        is_true: Callable[[], bool],
        timeout_s: float,
        is_wanted: Callable[[], bool],
        *,
        waiting_for: str,
        slow: str,
        until_the_end: bool = False,
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            self._check_failure()
            if is_true():
                return
            if self._is_shut_down and not until_the_end:
                raise ComputeJobError(f"the compute job was shut down while a client waited for {waiting_for}")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                verb = "so long to register" if waiting_for.endswith("register") else "so long"
                raise TimeoutException(
                    f"Timed out waiting for {waiting_for}. Try to find out what takes {slow} {verb} "
                    f"or increase timeout. Timeout after {timeout_s} seconds."
                )
            self._wait_once(is_wanted, remaining)

    def _wait_once(self, is_wanted: Callable[[], bool], remaining: float | None) -> None:
        self._changed.wait(_CHECK_EVERY_S if remaining is None else min(remaining, _CHECK_EVERY_S))
        if not is_wanted():
            raise ConnectionError("the client that asked is gone")
