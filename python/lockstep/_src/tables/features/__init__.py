"""Lookups of many tables at once, and feature columns over tables that grow; after DeepRec."""
