"""DeepRec's API on Lockstep: embedding variables, their options, feature columns, and `CollectiveStrategy`.

    import deeprec
    table = deeprec.get_embedding_variable('user', embedding_dim=16)

These are names of Lockstep's objects (docs/deeprec.md). They are imported when a program first asks for them, so that
the launcher never waits for TensorFlow. Programs that run with `--tf1` find them in their `tensorflow` as well, where
DeepRec has them.

Refuses to share its names with an original: DeepRec is a TensorFlow of its own, which has these modules already.
"""

import sys

from lockstep._src.compat.lazy import lazy_names
from lockstep._src.compat.originals import refuse_tensorflow

# Module -> the names that DeepRec has in `tf` itself, and the strategy.
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

_DEEPREC_FILE = "tensorflow/python/distribute/group_embedding_collective_strategy.py"


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if DeepRec's TensorFlow is installed; it has a file that TensorFlow lacks."""
    refuse_tensorflow("DeepRec", "lockstep-deeprec", _DEEPREC_FILE, search_path)


__getattr__, __dir__ = lazy_names(__name__, _EXPORTS)
_refuse_originals(sys.path)
