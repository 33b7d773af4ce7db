"""DeepRec's API on Lockstep: embedding variables, their options, feature columns, and `CollectiveStrategy`.

    import deeprec
    table = deeprec.get_embedding_variable('user', embedding_dim=16)

Names alone; what they do is Lockstep's (docs/deeprec.md). They are imported when they are first asked for, so that the
launcher never waits for TensorFlow. Programs that run with `--tf1` find them in their `tensorflow` as well, where
DeepRec has them.

Refuses to share its names with an original: DeepRec is a TensorFlow of its own, which has these modules already.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

# Module -> what DeepRec has in `tf` itself, and the strategy.
_MODULES = {
    "lockstep.embedding": (
        *(
            "EmbeddingVariableOption",
            "InitializerOption",
            "StorageOption",
            "CheckpointOption",
            "get_embedding_variable",
        ),
        *("GlobalStepEvict", "L2WeightEvict", "TimeEvict", "BudgetEvict", "CounterFilter", "CBFFilter"),
        *("CacheStrategy", "StorageType"),
    ),
    "lockstep.train": ("CollectiveStrategy",),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_EXPORTS)

_OF_DEEPREC = "tensorflow/python/distribute/group_embedding_collective_strategy.py"


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if DeepRec's TensorFlow is installed; it has a file that TensorFlow has not."""
    for folder in search_path:
        if Path(folder or ".", _OF_DEEPREC).is_file():
            raise ImportError(
                f"the TensorFlow in {folder or '.'} is DeepRec's, which has the modules that lockstep-deeprec provides "
                "as well; keep one: install TensorFlow from PyPI, or pip uninstall lockstep-deeprec"
            )


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


_refuse_originals(sys.path)
