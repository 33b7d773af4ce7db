"""Optimizers that SOK 1.x had under names of Keras."""

from sparse_operation_kit.tf.keras import mixed_precision, optimizers

__all__ = ["mixed_precision", "optimizers"]
