"""HybridBackend's API on Lockstep: `import hybridbackend.tensorflow as hb`.

Refuses to share its import name with an original distribution, such as hybridbackend-tf115-cpu. The one that was
installed last would have overwritten files of the other.
"""

import sys as _sys

from lockstep._src.compat.originals import refuse_distribution as _refuse_distribution


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if an original HybridBackend is installed; its distributions are all named hybridbackend*."""
    _refuse_distribution("hybridbackend", r"hybridbackend\w*", search_path)


_refuse_originals(_sys.path)
