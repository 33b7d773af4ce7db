"""Implementations of other libraries' interfaces; the façades hold only their names."""
