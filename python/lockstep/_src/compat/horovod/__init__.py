"""Horovod's interfaces that nothing else here uses."""
