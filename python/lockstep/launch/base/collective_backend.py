"""The collective backend that a program of DeepRec's asks for. Its launcher and `CollectiveStrategy` read it."""

from collections.abc import Mapping

VARIABLE = "COLLECTIVE_STRATEGY"
BACKENDS = ("hb", "sok")
# DeepRec has two defaults: 'hb' in its launcher, 'sok' in its class. Here there is one.
DEFAULT = "hb"


def collective_backend(environment: Mapping[str, str]) -> str:
    """Returns the value of COLLECTIVE_STRATEGY, 'hb' or 'sok'; 'hb' if it is not set.

    Raises:
      ValueError: the variable has another value.
    """
    value = environment.get(VARIABLE, DEFAULT)
    if value not in BACKENDS:
        raise ValueError(f"{VARIABLE}={value!r}: wanted {' or '.join(BACKENDS)}, or the variable unset ({DEFAULT})")
    return value
