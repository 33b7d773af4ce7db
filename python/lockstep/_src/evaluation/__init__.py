"""Metrics, and evaluation during training."""
