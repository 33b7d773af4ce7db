"""Estimators that train, evaluate and predict on all workers of a job."""
