"""The training job's side: it reads from the compute job's dispatchers, or runs the dispatchers itself."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lockstep._src.compat.horovod.data_service import servers
from lockstep._src.compat.horovod.data_service.client import ComputeClient
from lockstep._src.compat.horovod.data_service.config import TfDataServiceConfig
from lockstep._src.compat.horovod.data_service.errors import DataServiceError, TimeoutException
from lockstep._src.hooks import symbols
from lockstep._src.hooks.hook_set import HookSet
from lockstep._src.hooks.interception import Interception

_LOG = logging.getLogger("lockstep")

_MODES = ("distributed_epoch", "parallel_epochs")


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Yields the address of this training rank's dispatcher, `grpc://host:port`, when all of its workers are ready.

    If there is one dispatcher, all ranks use it. If there are several, rank r uses dispatcher r. If dispatchers are on
    the training side, rank r also starts dispatcher r, and ends it when the block is left. Before it ends the
    dispatcher, it waits until the other ranks have left their blocks, at most for the config's `timeout` seconds. If
    the compute job fails while datasets read from it, an error is logged.

    Args:
      compute_config: the compute job's config.
      rank: the rank of this process in the training job.

    Raises:
      ValueError: there are several dispatchers, and none for this rank.
      TimeoutException: the dispatcher or its workers did not register within the config's `timeout`.
      ComputeJobError, UnreachableError, WrongKeyError: the compute job has failed, ended or cannot be reached.
    """
    _check_rank(compute_config, rank, None)
    client = compute_config.compute_client(verbose=2)
    dispatcher_id = rank if compute_config.dispatchers > 1 else 0
    is_ours = compute_config.dispatcher_side == "training" and dispatcher_id == rank
    with servers.dispatcher(client, dispatcher_id) if is_ours else contextlib.nullcontext():
        address = client.wait_for_dispatcher_registration(dispatcher_id, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(dispatcher_id, compute_config.timeout)
        threading.Thread(target=_log_failure, args=(client,), name="data service watch", daemon=True).start()
        if compute_config.dispatcher_side == "compute":
            yield address
        else:
            with _use(client, dispatcher_id, rank, compute_config.timeout if is_ours else None):
                yield address


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: Any = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
    job_name: str = "job",
) -> tf.data.Dataset:
    """Returns a dataset whose transformations so far run in the compute job.

    Each training rank gets all elements. With `distributed_epoch`, a dispatcher's workers divide the elements among
    them; with `parallel_epochs`, each worker processes the whole dataset. With `reuse_dataset`, the ranks of a
    dispatcher share the elements: each element goes to the first rank that asks, or with `round_robin` to the ranks in
    turn.

    Args:
      dataset: the training rank's dataset; the same on all ranks.
      compute_config: the config of a compute job with dispatchers on the compute side.
      rank: the rank of this process in the training job.
      size: number of training ranks. Required for `round_robin`. If there are several dispatchers, it must be their
        number.
      processing_mode: `distributed_epoch`, `parallel_epochs`, or a `tf.data.experimental.service.ShardingPolicy`.
      reuse_dataset: the ranks of a dispatcher share one pass through the dataset.
      round_robin: the ranks take turns; the dataset must be infinite.
      job_name: the name of the shared pass, for `reuse_dataset`; each dataset needs a different name.

    Raises:
      ValueError: an argument is wrong, or there are several dispatchers and their number is not that of the ranks.
      RuntimeError: dispatchers are on the training side.
      TimeoutException, ComputeJobError, UnreachableError, WrongKeyError: as in `tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "training side dispatcher not supported, use tf_data_service context manager instead: "
            "the compute job was started with --dispatcher-side training"
        )
    if not isinstance(processing_mode, tf.data.experimental.service.ShardingPolicy) and processing_mode not in _MODES:
        raise ValueError(f"processing_mode is {processing_mode!r}, wanted {', '.join(_MODES)} or a ShardingPolicy")
    if round_robin and not reuse_dataset:
        raise ValueError("round_robin needs reuse_dataset: without it each rank has a pass of its own")
    if round_robin and size is None:
        raise ValueError("round_robin needs size, the number of training ranks that take turns")
    _check_rank(compute_config, rank, size)
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=job_name if reuse_dataset else None,
                consumer_index=rank if round_robin else None,
                num_consumers=size if round_robin else None,
            )
        )


def add_to_datasets() -> None:
    """Adds the method `send_to_data_service` to `tf.data.Dataset`, from now on."""
    _hooks.hold("add_to_datasets")


def _add_method(interception: Interception) -> None:
    interception.replace(symbols.SEND_TO_DATA_SERVICE, lambda _: send_to_data_service)


_hooks = HookSet(symbols.FACADE, _add_method)


def _log_failure(client: ComputeClient) -> None:
    # TensorFlow itself retries for an hour, without a message that a user would understand, and cannot be interrupted.
    try:
        client.wait_for_shutdown()
    except DataServiceError as error:
        _LOG.error("data service: %s; datasets that read from it get no more elements", error)


def _check_rank(compute_config: TfDataServiceConfig, rank: int, size: int | None) -> None:
    if rank < 0 or (size is not None and rank >= size):
        raise ValueError(f"rank is {rank}, wanted 0 to size - 1" + (f" ({size - 1})" if size is not None else ""))
    dispatchers = compute_config.dispatchers
    if dispatchers > 1 and (rank >= dispatchers or size not in (None, dispatchers)):
        raise ValueError(
            f"the compute job has {dispatchers} dispatchers, one for each training rank, but this is rank {rank}"
            + (f" of {size}" if size is not None else "")
            + ": start that number of training ranks, or the compute job with one dispatcher per rank or one for all"
        )


@contextlib.contextmanager
def _use(client: ComputeClient, dispatcher_id: int, rank: int, wait_for_others_s: float | None) -> Iterator[None]:
    """Registers a rank as a reader inside the block; then waits for the other ranks, if a time is given."""
    client.begin_use(dispatcher_id, rank)
    try:
        yield
    finally:
        # If the compute job has ended, there is nothing to report, and this error must not hide the block's own.
        with contextlib.suppress(DataServiceError):
            client.end_use(dispatcher_id, rank)
            if wait_for_others_s is not None:
                try:
                    client.wait_until_unused(dispatcher_id, wait_for_others_s)
                except TimeoutException:
                    _LOG.warning(
                        "dispatcher %d ends, although other training ranks have not left tf_data_service within %g s",
                        dispatcher_id,
                        wait_for_others_s,
                    )
