"""Reads numbers of seconds from environment variables."""

import math
from collections.abc import Mapping

from lockstep.launch.base.errors import LaunchError


def seconds_of(
    environment: Mapping[str, str], variable: str, default: float, least: float = 0, most: float = math.inf
) -> float:
    """Returns the number of seconds in a variable; `default` if it is not set.

    Raises:
      LaunchError: the value is no finite number, or is not within `least` and `most`.
    """
    text = environment.get(variable, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and least <= seconds <= most):
        wanted = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
        raise LaunchError(f"{variable}={text!r}: wanted seconds, {wanted}")
    return seconds
