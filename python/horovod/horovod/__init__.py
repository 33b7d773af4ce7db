"""Horovod's API on Lockstep: `horovodrun`, and in a program `horovod.run(function, np=2)`.

`__version__` is the version of the Horovod whose API this is; programs ask for it.

Refuses to share its import name with the original distribution. The one that was installed last would have overwritten
files of the other.
"""

import sys as _sys

from lockstep._src.compat.originals import refuse_distribution as _refuse_distribution


def _refuse_originals(search_path: list[str]) -> None:
    """Raises ImportError if the original Horovod is installed; its distribution is named horovod."""
    _refuse_distribution("horovod", "horovod", search_path)


_refuse_originals(_sys.path)

from horovod.runner import run  # noqa: E402
from lockstep.launch.frontends.horovod_command_line import API_VERSION as __version__  # noqa: E402, N812

__all__ = ["__version__", "run"]
