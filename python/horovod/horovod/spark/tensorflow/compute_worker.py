"""A data service's compute job on Spark.

    spark-submit --master "local[4]" compute_worker.py [--dispatchers N] [--dispatcher-side S] [--timeout S] FILE

`compute_worker.py` is this file: `horovod.spark.tensorflow.compute_worker.__file__`.
"""

from lockstep.spark.compute import run_command

if __name__ == "__main__":
    run_command("horovod.spark.tensorflow.compute_worker")
