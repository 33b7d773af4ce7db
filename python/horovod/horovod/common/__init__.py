"""What Horovod's API has in common for all frameworks."""
