"""Elastic programs of Horovod's: states that survive the loss of processes, and the loop that resumes from them."""
