"""Parts of Horovod's API that all frameworks share."""
