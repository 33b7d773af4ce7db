"""Decides how many workers a launcher starts, on which hosts and GPUs, and what each finds in its environment."""
