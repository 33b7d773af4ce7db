"""Estimators of a job."""
