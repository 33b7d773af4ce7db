"""What several of Horovod's services have in common."""
