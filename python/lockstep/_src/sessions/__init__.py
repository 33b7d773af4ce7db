"""TensorFlow 1 sessions and their hooks for the workers of a job."""
