"""Runs elastic jobs, whose workers and hosts may join and leave during training."""
