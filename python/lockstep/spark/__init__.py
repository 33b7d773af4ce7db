"""Jobs on Spark: a data service's compute job, and training in the slots of Spark's tasks. Needs pyspark."""

from lockstep.spark.compute import run_command
from lockstep.spark.training import run_function

__all__ = ["run_command", "run_function"]
