"""Keras 3 on all workers of a job: layers with dynamic tables and exports; in subpackages, models and replacements."""
