"""Replacements inside Keras 3 while a scope is open."""
