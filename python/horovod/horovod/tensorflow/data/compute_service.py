"""Datasets processed by a data service; gives `tf.data.Dataset` the method `send_to_data_service`."""

from lockstep.data_service import (
    TfDataServiceConfig,
    add_to_datasets,
    own_place,
    run_worker,
    send_to_data_service,
    tf_data_service,
)

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Runs this process's servers of a compute job whose registry runs elsewhere: `lockstep.data_service.run_worker`.

    The environment gives the rank (HOROVOD_RANK or LOCKSTEP_RANK).
    """
    run_worker(compute_config, own_place().rank)


add_to_datasets()
