"""Runs workers of other hosts: an agent there starts them, and the launcher speaks with it over ssh or srun."""
