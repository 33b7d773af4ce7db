"""Initializers of tables by name."""

from lockstep._src.compat.sok import initializers as _initializers

__all__ = ["InPlaceInitializer"]


class InPlaceInitializer(_initializers.InPlaceInitializer):
    """The initializer of a table: `InPlaceInitializer(name="random_uniform")`, "ones" or "zeros".

    Args:
      **kwargs: become attributes; `name` is the name. "random_uniform" gives values between -0.05 and 0.05.
    """
