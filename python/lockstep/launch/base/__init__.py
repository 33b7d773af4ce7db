"""Modules that all other folders use: errors, output, addresses, and the protocols between launcher and workers.

Workers import this folder too, so it loads in milliseconds.
"""
