"""Reads numbers of seconds from environment variables."""

import math
import re
from collections.abc import Mapping

from lockstep.launch.base.errors import LaunchError


def seconds_of(
    environment: Mapping[str, str], variable: str, default: float, least: float = 0, most: float = math.inf
) -> float:
    """Returns the number of seconds in a variable; `default` if it is not set.

    Raises:
      LaunchError: the value is not a finite number, or is not within `least` and `most`.
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


def whole_seconds(variable: str, text: str) -> int:
    """Returns the whole number of seconds in a variable's text.

    Raises:
      LaunchError: it is not a number, or less than 1.
    """
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise LaunchError(f"{variable}={text!r}: wanted seconds, 1 or more")
    return int(text)
