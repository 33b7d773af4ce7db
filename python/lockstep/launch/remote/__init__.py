"""Runs workers of other hosts: an agent on each host starts them. Launcher and agent communicate over ssh or srun."""
