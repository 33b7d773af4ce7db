"""Names that elastic programs import from Horovod's runner."""
