"""TensorFlow on Spark."""
