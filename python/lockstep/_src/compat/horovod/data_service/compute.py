"""The compute job: each process runs a worker of tf.data's service, some run a dispatcher, rank 0 runs the registry.

1. Rank 0 opens the registry and writes the config file; the others wait for the file and read it.
2. With `dispatcher_side="compute"`, the first rank of each group of `workers_per_dispatcher` starts the group's
   dispatcher and registers it. Otherwise the training job does.
3. Every rank waits for its group's dispatcher, starts a worker that uses it, registers the worker, and waits for the
   end. If a worker has not registered at the deadline, the job fails.
4. The training job tells the registry to end. If the connection of a waiting rank breaks, the job fails. If rank 0
   dies, the connections of the other ranks break, and they fail.
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
    """The settings of a compute job.

    Attributes:
      dispatchers: number of dispatchers; must divide the number of processes.
      dispatcher_side: the job that runs the dispatchers: `compute` or `training`.
      configfile: path of the config file; all processes of both jobs must see it.
      timeout: how long to wait for dispatchers and workers, in seconds.
    """

    dispatchers: int
    dispatcher_side: str
    configfile: Path
    timeout: int

    def validate(self, size: int) -> None:
        """Checks the settings for a job of `size` processes. Raises ValueError if they are wrong."""
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
            raise ValueError(
                f"cannot write the config file {self.configfile}: {folder} is not a folder, or the file is a folder"
            )
        addresses.reachable_addresses(addresses.chosen_interfaces())


def main(dispatchers: int, dispatcher_side: str, configfile: str | os.PathLike[str], timeout: int) -> None:
    """Runs this process of a compute job until the training job ends it.

    The environment gives the process's rank and the number of processes (`HOROVOD_RANK`, `HOROVOD_SIZE`, or
    `LOCKSTEP_RANK`, `LOCKSTEP_WORLD_SIZE`); without them it is the only process. Rank 0 removes the config file at the
    end. If the job fails, rank 0 replaces the file by a note with the reason; waiting training jobs raise this error.

    Args:
      dispatchers: number of dispatchers; must divide the number of processes.
      dispatcher_side: the job that runs the dispatchers: `compute` or `training`.
      configfile: path of the config file; all processes of both jobs must see it.
      timeout: how long to wait for dispatchers and workers, in seconds.

    Raises:
      ValueError: an argument is wrong; nothing has been started.
      DataServiceError: the file belongs to another compute job that still runs; or another process of this job has died
        or did not register.
      TimeoutException: a dispatcher, or rank 0, did not start in time.
    """
    run(Request(dispatchers, dispatcher_side, Path(configfile), timeout), own_place())


def run(request: Request, place: Place) -> None:
    """Runs a process of a compute job like `main`, but at a given place in the job."""
    if place.rank == 0:
        serve(request, place, lambda own: run_worker(own, place.rank))
    else:
        request.validate(place.size)
        run_worker(_wait_for_own_config(request, place), place.rank)


def run_worker(compute_config: TfDataServiceConfig, rank: int) -> None:
    """Runs the servers of one process of a compute job until training ends it; the registry must already run.

    Args:
      compute_config: the job's config.
      rank: the process's rank.

    Raises:
      DataServiceError: the job has failed, or the registry has died.
      TimeoutException: the dispatcher did not register in time.
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
            # The job is ending, and rank 0 did not wait for this slow worker: not an error.
            if not is_end:
                raise


def serve(request: Request, place: Place, run_workers: Callable[[TfDataServiceConfig], None]) -> None:
    """Runs the registry of a compute job and a given function; meanwhile the config file exists.

    Args:
      request: the settings of the job.
      place: the place of rank 0; its size is the number of workers, also if rank 0 itself runs no worker.
      run_workers: takes the config; returns when all workers that it manages have stopped.

    Raises:
      ValueError: an argument is wrong; nothing has been started.
      DataServiceError: the config file belongs to another compute job that still runs.
    """
    with failures_are_left_in(request.configfile):
        request.validate(place.size)
    with failures_are_left_in(request.configfile), _registry(request, place) as compute_config:
        run_workers(compute_config)


@contextlib.contextmanager
def failures_are_left_in(path: Path) -> Iterator[None]:
    """Writes the reason of a failure to the config file, unless the file belongs to a compute job that runs."""
    try:
        yield
    except Exception as error:
        if config.running(path) is None:
            # If the file cannot be written either, the first error is the important one.
            with contextlib.suppress(OSError):
                config.leave_failure_note(path, str(error))
        raise


@contextlib.contextmanager
def _registry(request: Request, place: Place) -> Iterator[TfDataServiceConfig]:
    """Runs the registry inside the block; meanwhile the config file exists."""
    if config.running(request.configfile) is not None:
        raise DataServiceError(
            f"{request.configfile} belongs to a running compute job; end that job, or give this one another file"
        )
    # A file of an earlier job: the other ranks and the training job could take it for this job's.
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
        reason = str(error).removeprefix(FAILED) if isinstance(error, Exception) else "rank 0 was stopped"
        service.fail(reason)
        raise
    finally:
        config.remove(request.configfile, own)
        service.shutdown()


def _wait_until_all_have_stopped(own: TfDataServiceConfig) -> None:
    """Keeps the registry until the workers of all ranks have stopped, or for `STOP_TIMEOUT_S` per dispatcher."""
    client = own.compute_client()
    with contextlib.suppress(TimeoutException):
        for dispatcher in range(own.dispatchers):
            client.wait_until_stopped(dispatcher, servers.STOP_TIMEOUT_S)


def _demand_all(service: ComputeService, own: TfDataServiceConfig) -> None:
    """Makes the job fail if not all of its dispatchers and workers register in time."""
    # All other errors mean that the job has already ended or failed.
    with contextlib.suppress(DataServiceError):
        try:
            client = own.compute_client()
            for dispatcher in range(own.dispatchers):
                client.wait_for_dispatcher_registration(dispatcher, own.timeout)
                client.wait_for_dispatcher_worker_registration(dispatcher, own.timeout)
        except TimeoutException as error:
            service.fail(str(error))


def _wait_for_own_config(request: Request, place: Place) -> TfDataServiceConfig:
    """Waits for the config that rank 0 of this job writes, and ignores files of other jobs."""
    deadline = time.monotonic() + request.timeout
    while time.monotonic() < deadline:
        found = config.running(request.configfile)
        if found is not None and found.job == place.job:
            return found
        time.sleep(_POLL_S)
    raise TimeoutException(
        f"rank {place.rank}: rank 0 has not written {request.configfile} within {request.timeout} s, or this host "
        f"cannot see the file or reach rank 0"
    )
