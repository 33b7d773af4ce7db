"""Embedding tables: sharded by rows, dynamic, their fused updates, and feature columns over them."""
