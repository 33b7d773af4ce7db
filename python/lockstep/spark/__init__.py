"""Jobs on Spark: a data service's compute job (`compute`), training in the slots of Spark's tasks (`training`).

Needs pyspark. Imports neither: tasks that hold a slot for training do without TensorFlow.
"""
