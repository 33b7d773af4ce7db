"""Helpers of services."""
