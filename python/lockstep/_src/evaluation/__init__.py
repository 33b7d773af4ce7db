"""Metrics, and evaluation along with training."""
