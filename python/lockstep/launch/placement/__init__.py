"""Plans the workers of a launcher: how many, on which hosts and GPUs, and with which environment variables."""
