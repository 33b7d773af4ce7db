"""Runs workers of this machine: starts their processes, watches over them, and ends them together."""
