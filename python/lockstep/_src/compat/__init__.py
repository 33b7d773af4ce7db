"""Implementations of other libraries' interfaces; the façades hold their names alone."""
