"""Modules that every other folder may use: errors, output, addresses, and all that launcher and workers have in common.

Workers import this folder too, so it needs nothing but the standard library and loads in milliseconds.
"""
