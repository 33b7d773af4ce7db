"""Horovod's API on Lockstep: `horovodrun`, and in a program `horovod.run(function, np=2)`.

`__version__` is that of the Horovod whose API this is; programs ask for it.

Refuses to share its import name with the original distribution: whichever was installed last would have overwritten
files of the other.
"""

import sys
from pathlib import Path


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if the original Horovod is installed; its distribution is named horovod."""
    for folder in search_path:
        for pattern in ("horovod-*.dist-info", "horovod-*.egg-info", "horovod.egg-info"):
            for found in Path(folder or ".").glob(pattern):
                raise ImportError(
                    f"the distribution horovod in {found.parent} provides the package horovod as well as "
                    "lockstep-horovod does; keep one: pip uninstall horovod (then reinstall lockstep-horovod), or pip "
                    "uninstall lockstep-horovod"
                )


_refuse_originals(sys.path)

from horovod.runner import run  # noqa: E402
from lockstep.launch.frontends.horovod_command_line import API_VERSION as __version__  # noqa: E402, N812

__all__ = ["__version__", "run"]
