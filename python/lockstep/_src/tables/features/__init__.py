"""Lookups of many tables at once, and feature columns over dynamic tables; after DeepRec."""
