"""Replicated variables, and the exchanges that keep their values the same on all workers."""
