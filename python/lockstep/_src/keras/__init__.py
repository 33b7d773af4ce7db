"""Keras 3 in a scope."""
