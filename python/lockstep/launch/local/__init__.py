"""Runs workers of this machine: starts their processes, supervises them, and ends them together."""
