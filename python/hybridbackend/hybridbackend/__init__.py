"""HybridBackend's API on Lockstep: `import hybridbackend.tensorflow as hb`.

Refuses to share its import name with an original distribution (hybridbackend-tf115-cpu and its likes): whichever was
installed last would have overwritten files of the other.
"""

import sys
from pathlib import Path


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if an original HybridBackend is installed; its distributions are all named hybridbackend*."""
    for folder in search_path:
        for pattern in ("hybridbackend*.dist-info", "hybridbackend*.egg-info"):
            for found in Path(folder or ".").glob(pattern):
                name = found.name.partition("-")[0].replace("_", "-")
                raise ImportError(
                    f"the distribution {name} in {found.parent} provides the package hybridbackend as well as "
                    f"lockstep-hybridbackend does; keep one: pip uninstall {name} (then reinstall "
                    "lockstep-hybridbackend), or pip uninstall lockstep-hybridbackend"
                )


_refuse_originals(sys.path)
