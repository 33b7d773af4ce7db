"""Runs elastic jobs, whose workers and hosts come and go while they train."""
