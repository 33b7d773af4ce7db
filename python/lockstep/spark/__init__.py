"""Jobs on Spark: a data service's compute job (`compute`), and training in the slots of Spark's tasks (`training`).

The modules need pyspark. This package imports neither of them, because tasks that hold a slot for training do not need
TensorFlow.
"""
