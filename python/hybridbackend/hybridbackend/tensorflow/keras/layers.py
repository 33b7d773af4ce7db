"""`hb.keras.layers`."""

from lockstep.keras.layers import dense_features

__all__ = ["dense_features"]
