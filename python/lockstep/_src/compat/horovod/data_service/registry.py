"""What the compute job knows of its dispatchers and workers, and who waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lockstep._src.compat.horovod.data_service.errors import FAILED, ComputeJobError, TimeoutException

# How often a waiting thread looks whether the one that it waits for is still there, in seconds.
_LOOK_EVERY_S = 0.5


class Registry:
    """Dispatchers, their workers and users, and the end of the job. Thread safe.

    Args:
      dispatchers: how many there will be; ids are 0 to `dispatchers` - 1.
      workers_per_dispatcher: how many workers each will have.
    """

    def __init__(self, dispatchers: int, workers_per_dispatcher: int):
        if dispatchers <= 0:
            raise ValueError(f"The number of dispatchers must be larger than 0: {dispatchers}")
        if workers_per_dispatcher <= 0:
            raise ValueError(f"The number of workers per dispatcher must be larger than 0: {workers_per_dispatcher}")
        self._workers_per_dispatcher = workers_per_dispatcher
        self._changed = threading.Condition()
        # All below under _changed.
        self._addresses: list[str | None] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._stopped: list[set[int]] = [set() for _ in range(dispatchers)]
        self._users: list[set[int]] = [set() for _ in range(dispatchers)]
        self._retired: set[int] = set()
        self._failure: str | None = None
        self._is_shut_down = False

    def check(self) -> None:
        """Raises ComputeJobError if the job has failed, or was told to end."""
        with self._changed:
            self._check_failure()
            if self._is_shut_down:
                raise ComputeJobError("the compute job was shut down")

    def register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        """Says where a dispatcher listens; again with the same address changes nothing.

        Raises:
          IndexError: there is no such dispatcher.
          ValueError: it has another address already.
        """
        with self._changed:
            self._check_id(dispatcher_id)
            known = self._addresses[dispatcher_id]
            if known is not None and known != address:
                raise ValueError(
                    f"Dispatcher with id {dispatcher_id} has already been registered under different address "
                    f"{known}: {address}"
                )
            self._addresses[dispatcher_id] = address
            self._changed.notify_all()

    def wait_for_dispatcher(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> str:
        """The address of a dispatcher, once it has registered.

        Args:
          dispatcher_id: which.
          timeout_s: after this time, in seconds, it raises.
          is_wanted: whether somebody still wants to know.

        Raises:
          IndexError: there is no such dispatcher.
          TimeoutException: it has not come in time.
          ComputeJobError: the job has failed or ended meanwhile.
          ConnectionError: nobody wants to know any more.
        """
        with self._changed:
            self._check_id(dispatcher_id)
            self._wait(
                lambda: self._addresses[dispatcher_id] is not None,
                timeout_s,
                is_wanted,
                waiting_for=f"dispatcher {dispatcher_id} to register",
                slow="the dispatcher",
            )
            return str(self._addresses[dispatcher_id])

    def register_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Says that a worker of a dispatcher is ready; again changes nothing. IndexError: no such dispatcher."""
        with self._changed:
            self._check_id(dispatcher_id)
            self._workers[dispatcher_id].add(worker_id)
            self._changed.notify_all()

    def wait_for_workers(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        """Returns once a dispatcher has all of its workers; arguments and errors of `wait_for_dispatcher`."""
        with self._changed:
            self._check_id(dispatcher_id)
            self._wait(
                lambda: len(self._workers[dispatcher_id]) >= self._workers_per_dispatcher,
                timeout_s,
                is_wanted,
                waiting_for=f"workers for dispatcher {dispatcher_id} to register",
                slow="the workers",
            )

    def wait_for_end_of_work(self, dispatcher_id: int, is_wanted: Callable[[], bool]) -> bool:
        """Returns once a dispatcher retires or the job is told to end, and whether it is the job.

        Errors are those of `wait_for_shutdown`.
        """
        with self._changed:
            while not self._is_shut_down and dispatcher_id not in self._retired:
                self._check_failure()
                self._look(is_wanted, None)
            self._check_failure()
            return self._is_shut_down

    def retire_dispatcher(self, dispatcher_id: int) -> None:
        """Says that a dispatcher is going to end, so that its workers end first. IndexError: no such dispatcher."""
        with self._changed:
            self._check_id(dispatcher_id)
            self._retired.add(dispatcher_id)
            self._changed.notify_all()

    def end_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Says that a worker has stopped. IndexError: no such dispatcher."""
        with self._changed:
            self._check_id(dispatcher_id)
            self._stopped[dispatcher_id].add(worker_id)
            self._changed.notify_all()

    def wait_until_stopped(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        """Returns once the workers of a dispatcher have stopped, also while the job ends.

        Arguments and errors are those of `wait_for_dispatcher`.
        """
        with self._changed:
            self._check_id(dispatcher_id)
            self._wait(
                lambda: self._workers[dispatcher_id] <= self._stopped[dispatcher_id],
                timeout_s,
                is_wanted,
                waiting_for=f"workers for dispatcher {dispatcher_id} to stop",
                slow="the workers",
                until_the_end=True,
            )

    def begin_use(self, dispatcher_id: int, rank: int) -> None:
        """A rank of the training job will read through a dispatcher. IndexError: no such dispatcher."""
        with self._changed:
            self._check_id(dispatcher_id)
            self._users[dispatcher_id].add(rank)

    def end_use(self, dispatcher_id: int, rank: int) -> None:
        """It reads no more. IndexError: no such dispatcher."""
        with self._changed:
            self._check_id(dispatcher_id)
            self._users[dispatcher_id].discard(rank)
            self._changed.notify_all()

    def wait_until_unused(self, dispatcher_id: int, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        """Returns once no rank reads through a dispatcher; arguments and errors of `wait_for_dispatcher`."""
        with self._changed:
            self._check_id(dispatcher_id)
            self._wait(
                lambda: not self._users[dispatcher_id],
                timeout_s,
                is_wanted,
                waiting_for=f"training ranks to leave dispatcher {dispatcher_id}",
                slow="them",
            )

    def wait_for_shutdown(self, is_wanted: Callable[[], bool]) -> None:
        """Returns once the job is told to end, without a limit.

        Raises:
          ComputeJobError: the job has failed.
          ConnectionError: nobody wants to know any more.
        """
        with self._changed:
            while not self._is_shut_down:
                self._check_failure()
                self._look(is_wanted, None)
            self._check_failure()

    def shutdown(self) -> None:
        """Tells all who wait that the job ends."""
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
        """Tells all who wait, now or later, that the job has failed. The first reason is kept; none after the end."""
        with self._changed:
            if not self._is_shut_down:
                self._failure = self._failure or reason
                self._changed.notify_all()

    def _check_id(self, dispatcher_id: int) -> None:
        last = len(self._addresses) - 1
        if not 0 <= dispatcher_id <= last:
            raise IndexError(f"Dispatcher id must be within [0..{last}]: {dispatcher_id}")

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
                raise ComputeJobError(f"the compute job was shut down while somebody waited for {waiting_for}")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                verb = "so long to register" if waiting_for.endswith("register") else "so long"
                raise TimeoutException(
                    f"Timed out waiting for {waiting_for}. Try to find out what takes {slow} {verb} "
                    f"or increase timeout. Timeout after {timeout_s} seconds."
                )
            self._look(is_wanted, remaining)

    def _look(self, is_wanted: Callable[[], bool], remaining: float | None) -> None:
        self._changed.wait(_LOOK_EVERY_S if remaining is None else min(remaining, _LOOK_EVERY_S))
        if not is_wanted():
            raise ConnectionError("who asked is gone")
