"""Digits with a model's `fit` on batches from a data service, in slots of a Spark cluster. Start the service first.

    worker_py=$(python -c "import horovod.spark.tensorflow.compute_worker as worker; print(worker.__file__)")
    spark-submit --master "local[4]" "$worker_py" /tmp/compute.json

    cd examples/spark/tensorflow2
    spark-submit --master "local[2]" --py-files \
tensorflow2_mnist_data_service_train_fn_compute_side_dispatcher.py,\
tensorflow2_mnist_data_service_train_fn_training_side_dispatcher.py \
tensorflow2_mnist_data_service.py /tmp/compute.json

The config file determines whether dispatchers run in the compute job or in this one. Ends the compute job.
"""

import argparse

import tensorflow2_mnist_data_service_train_fn_compute_side_dispatcher as compute_side
import tensorflow2_mnist_data_service_train_fn_training_side_dispatcher as training_side
from pyspark.sql import SparkSession

import horovod.spark
from horovod.tensorflow.data.compute_service import TfDataServiceConfig


def main():
    """Trains in all slots of the cluster, and ends the compute job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configfile", help="the config file of the compute job")
    parser.add_argument("--reuse-dataset", action="store_true", help="workers share one pass through the data")
    parser.add_argument("--round-robin", action="store_true", help="workers take batches in turn; with --reuse-dataset")
    options = parser.parse_args()

    compute_config = TfDataServiceConfig.read(options.configfile, wait_for_file_creation=True)
    session = SparkSession.builder.getOrCreate()
    side = training_side if compute_config.dispatcher_side == "training" else compute_side
    how = {"reuse_dataset": options.reuse_dataset, "round_robin": options.round_robin}
    accuracies = horovod.spark.run(side.train_fn, args=(compute_config,), kwargs=how)
    print(f"accuracy {accuracies[0]:.4f}")
    compute_config.compute_client(verbose=2).shutdown()
    session.stop()


if __name__ == "__main__":
    main()
