"""Parts that several of Horovod's services share."""
