"""What programs of elastic jobs import from Horovod's runner."""
