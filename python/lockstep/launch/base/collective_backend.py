"""Which collective backend a program of DeepRec's asks for: read by its launcher and by `CollectiveStrategy`."""

from collections.abc import Mapping

VARIABLE = "COLLECTIVE_STRATEGY"
BACKENDS = ("hb", "sok")
# One default. DeepRec has two: 'hb' of its launcher, 'sok' of its class.
DEFAULT = "hb"


def collective_backend(environment: Mapping[str, str]) -> str:
    """'hb' or 'sok', as COLLECTIVE_STRATEGY says; 'hb' where it is not set.

    Raises:
      ValueError: it says something else.
    """
    value = environment.get(VARIABLE, DEFAULT)
    if value not in BACKENDS:
        raise ValueError(f"{VARIABLE}={value!r}: wanted {' or '.join(BACKENDS)}, or the variable unset ({DEFAULT})")
    return value
