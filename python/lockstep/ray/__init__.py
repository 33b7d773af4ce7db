"""Jobs of Ray Train: the configuration with which a `TensorflowTrainer` starts workers of one job (docs/ray.md).

`LockstepConfig` needs `pip install 'ray[train]'`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.ray.config import LockstepConfig

__all__ = ["LockstepConfig"]

# Ray is imported with the module that holds a name, at the name's first use: without Ray, tests of this package can
# still be collected.
_EXPORTS = {"LockstepConfig": "lockstep.ray.config"}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
