"""Digits with a model's `fit` on batches from a data service. Start the service first.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker /tmp/compute.json
    horovodrun -np 2 python tensorflow2_mnist_data_service.py /tmp/compute.json

The config file determines whether dispatchers run in the compute job or in this one. Ends the compute job.
"""

import argparse

import tensorflow2_mnist_data_service_train_fn_compute_side_dispatcher as compute_side
import tensorflow2_mnist_data_service_train_fn_training_side_dispatcher as training_side

import horovod.tensorflow.keras as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig


def main():
    """Trains, and ends the compute job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configfile", help="the config file of the compute job")
    parser.add_argument("--reuse-dataset", action="store_true", help="workers share one pass through the data")
    parser.add_argument("--round-robin", action="store_true", help="workers take batches in turn; with --reuse-dataset")
    options = parser.parse_args()

    compute_config = TfDataServiceConfig.read(options.configfile, wait_for_file_creation=True)
    side = training_side if compute_config.dispatcher_side == "training" else compute_side
    side.train_fn(compute_config, reuse_dataset=options.reuse_dataset, round_robin=options.round_robin)
    # All workers must have read their data before the shutdown.
    hvd.allreduce(0.0, name="end")
    if hvd.rank() == 0:
        compute_config.compute_client(verbose=2).shutdown()


if __name__ == "__main__":
    main()
