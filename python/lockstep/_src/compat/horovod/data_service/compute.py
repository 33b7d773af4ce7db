"""The compute job: each of its processes runs a worker of tf.data's service, some a dispatcher, rank 0 the registry.

1. Rank 0 opens the registry and writes the config file; the others wait for the file and read it.
2. With `dispatcher_side="compute"`, the first rank of each group of `workers_per_dispatcher` starts the group's
   dispatcher and registers it. Otherwise the training job does.
3. Every rank waits for its group's dispatcher, starts its worker there, registers it, and waits for the end. A worker
   that is missing when the time is up ends the job.
4. Training tells the registry to end. Or a waiting rank's connection breaks, and the job fails; or rank 0 is gone, and
   the others, whose connections break, fail.
5. Workers stop before their dispatcher does, and the registry ends last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lockstep._src.compat.horovod.data_service import addresses, config, registry_messages, servers
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import (
    FAILED,
    DataServiceError,
    TimeoutException,
    UnreachableError,
)
from lockstep._src.compat.horovod.data_service.place import Place, own_place
from lockstep._src.compat.horovod.data_service.service import ComputeService

_LOG = logging.getLogger("lockstep")
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class Request:
    """What the compute job is asked for.

    Attributes:
      dispatchers: number of dispatchers; divides the number of processes.
      dispatcher_side: the job that runs them: `compute` or `training`.
      configfile: where the config is written; all processes of both jobs have to see it.
      timeout: how long dispatchers and workers are waited for, in seconds.
    """

    dispatchers: int
    dispatcher_side: str
    configfile: Path
    timeout: int

    def validate(self, size: int) -> None:
        """ValueError: this cannot be done with `size` processes."""
        for name, value in (("dispatchers", self.dispatchers), ("timeout", self.timeout)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, wanted a whole number, at least 1")
        if self.dispatcher_side not in config.SIDES:
            raise ValueError(f"dispatcher side is {self.dispatcher_side!r}, wanted {' or '.join(config.SIDES)}")
        if size % self.dispatchers:
            raise ValueError(
                f"Number of processes ({size}) must be a multiple of number of dispatchers ({self.dispatchers})."
            )
        folder = self.configfile.parent
        if not folder.is_dir() or self.configfile.is_dir():
            raise ValueError(f"the config file {self.configfile} cannot be: {folder} is no folder, or it is one itself")
        addresses.reachable_addresses(addresses.chosen_interfaces())


def main(dispatchers: int, dispatcher_side: str, configfile: str | os.PathLike[str], timeout: int) -> None:
    """Runs this process of a compute job until training tells it to end.

    The process's rank and the number of processes are those in the environment (`HOROVOD_RANK`, `HOROVOD_SIZE`, or
    `LOCKSTEP_RANK`, `LOCKSTEP_WORLD_SIZE`; the only process without them). Rank 0 removes the config file in the end,
    or, where the job fails, leaves a note with the reason in its place, which training jobs that wait for it get.

    Args:
      dispatchers: number of dispatchers; divides the number of processes.
      dispatcher_side: the job that runs them: `compute` or `training`.
      configfile: where the config is written; all processes of both jobs have to see it.
      timeout: how long dispatchers and workers are waited for, in seconds.

    Raises:
      ValueError: an argument is wrong; nothing has been started.
      DataServiceError: the file is of a compute job that runs, or another process of this job is gone or does not come.
      TimeoutException: a dispatcher, or rank 0, did not come in time.
    """
    run(Request(dispatchers, dispatcher_side, Path(configfile), timeout), own_place())


def run(request: Request, place: Place) -> None:
    """`main` for a place that is given."""
    if place.rank == 0:
        serve(request, place, lambda own: run_worker(own, place.rank))
    else:
        request.validate(place.size)
        run_worker(_wait_for_own_config(request, place), place.rank)


def run_worker(compute_config: TfDataServiceConfig, rank: int) -> None:
    """Runs the servers of one process of a compute job whose registry runs already, until training ends it.

    Args:
      compute_config: of the job.
      rank: of the process.

    Raises:
      DataServiceError: the job has failed, or the registry is gone.
      TimeoutException: the dispatcher did not come in time.
    """
    client = compute_config.compute_client()
    group, place_in_group = divmod(rank, compute_config.workers_per_dispatcher)
    with contextlib.ExitStack() as running:
        if compute_config.dispatcher_side == "compute" and place_in_group == 0:
            running.enter_context(servers.dispatcher(client, group))
        address = client.wait_for_dispatcher_registration(group, compute_config.timeout)
        with servers.worker(address, compute_config.timeout):
            _LOG.info("data service: worker %d of dispatcher %d (%s) is ready", rank, group, address)
            is_end = client.work(group, rank)
        try:
            client.end_worker(group, rank)
        except UnreachableError:
            # Told to end, and too slow for rank 0 to wait for.
            if not is_end:
                raise


def serve(request: Request, place: Place, run_workers: Callable[[TfDataServiceConfig], None]) -> None:
    """Runs the registry of a compute job, and what is given beside it, with the config file in place meanwhile.

    Args:
      request: what is asked for.
      place: rank 0's of as many processes as the job has workers; of one that runs no worker as well.
      run_workers: is told the config; returns when all workers that it knows of have stopped.

    Raises:
      ValueError: an argument is wrong; nothing has been started.
      DataServiceError: the file is of a compute job that runs.
    """
    with failures_are_left_in(request.configfile):
        request.validate(place.size)
    with failures_are_left_in(request.configfile), _registry(request, place) as compute_config:
        run_workers(compute_config)


@contextlib.contextmanager
def failures_are_left_in(path: Path) -> Iterator[None]:
    """Has the reason of a failure left in the file, unless a compute job that runs has written it."""
    try:
        yield
    except Exception as error:
        if config.running(path) is None:
            # Where the file cannot be written either, the first error is the one to see.
            with contextlib.suppress(OSError):
                config.leave_word(path, str(error))
        raise


@contextlib.contextmanager
def _registry(request: Request, place: Place) -> Iterator[TfDataServiceConfig]:
    """Runs the registry, with the config file in place meanwhile."""
    if config.running(request.configfile) is not None:
        raise DataServiceError(
            f"{request.configfile} is of a compute job that runs: end that, or give another file to this one"
        )
    # What an earlier job has left, which the other ranks and the training job could take for this one's.
    request.configfile.unlink(missing_ok=True)
    key = registry_messages.new_key()
    workers = place.size // request.dispatchers
    service = ComputeService(request.dispatchers, workers, key, nics=addresses.chosen_interfaces())
    own = TfDataServiceConfig(
        request.dispatchers, workers, request.dispatcher_side, service.addresses(), key, request.timeout, place.job
    )
    try:
        own.write(request.configfile)
        threading.Thread(target=_demand_all, args=(service, own), name="data service start", daemon=True).start()
        yield own
        _wait_until_all_have_stopped(own)
    except BaseException as error:
        reason = str(error).removeprefix(FAILED) if isinstance(error, Exception) else "rank 0 was told to end"
        service.fail(reason)
        raise
    finally:
        config.remove(request.configfile, own)
        service.shutdown()


def _wait_until_all_have_stopped(own: TfDataServiceConfig) -> None:
    """Keeps the registry for the ranks that end later."""
    client = own.compute_client()
    with contextlib.suppress(TimeoutException):
        for dispatcher in range(own.dispatchers):
            client.wait_until_stopped(dispatcher, servers.STOP_TIMEOUT_S)


def _demand_all(service: ComputeService, own: TfDataServiceConfig) -> None:
    """Has the job fail if not all of its dispatchers and workers come in time."""
    # It has ended or failed otherwise where this raises something else.
    with contextlib.suppress(DataServiceError):
        try:
            client = own.compute_client()
            for dispatcher in range(own.dispatchers):
                client.wait_for_dispatcher_registration(dispatcher, own.timeout)
                client.wait_for_dispatcher_worker_registration(dispatcher, own.timeout)
        except TimeoutException as error:
            service.fail(str(error))


def _wait_for_own_config(request: Request, place: Place) -> TfDataServiceConfig:
    """The config that rank 0 of this job writes; files of other jobs are passed over."""
    deadline = time.monotonic() + request.timeout
    while time.monotonic() < deadline:
        found = config.running(request.configfile)
        if found is not None and found.job == place.job:
            return found
        time.sleep(_POLL_S)
    raise TimeoutException(
        f"rank {place.rank}: rank 0 has not written {request.configfile} within {request.timeout} s, or it cannot be "
        f"seen or reached from here"
    )
