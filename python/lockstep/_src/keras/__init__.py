"""Keras 3 on all workers of a job: layers of dynamic tables, exports, and below them models and replacements."""
