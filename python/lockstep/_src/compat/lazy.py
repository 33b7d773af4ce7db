"""Names of a façade that are imported at their first use.

This module imports neither TensorFlow nor other modules of this project.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(module: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a module with names that are imported later.

    `dir()` lists the public names only: the names in `__all__` and in `places`.

    Args:
      module: the module's name.
      places: from each name to the module that holds it, or to the module that it is.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = importlib.import_module(places[name])
        value = found if places[name].endswith(f".{name}") else getattr(found, name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]).get("__all__", ()), *places})

    return get, names
