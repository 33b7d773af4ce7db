"""HybridBackend's API on Lockstep: `import hybridbackend.tensorflow as hb`.

Refuses to share its import name with an original distribution, such as hybridbackend-tf115-cpu. The one that was
installed last would have overwritten files of the other.
"""

import importlib as _importlib
import sys as _sys

from lockstep._src.compat.originals import refuse_distribution as _refuse_distribution


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if an original HybridBackend is installed; its distributions are all named hybridbackend*."""
    _refuse_distribution("hybridbackend", r"hybridbackend\w*", search_path)


_refuse_originals(_sys.path)


def __getattr__(name: str) -> object:
    """Returns the launcher `hybridbackend.run`. It is imported late: `-m hybridbackend.run` runs the file itself."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module("hybridbackend.run")
