"""The version of SOK whose API this is."""

__version__ = "2.1.0"
