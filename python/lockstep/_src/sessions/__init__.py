"""Sessions of TensorFlow 1 and their hooks, as a worker of the job runs them."""
