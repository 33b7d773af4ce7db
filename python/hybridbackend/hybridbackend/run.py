"""HybridBackend's spellings of the launcher.

`python -m hybridbackend.run [-n N] [--tf1] python main.py ...`, and in a program `hybridbackend.run.run(function)`. The
documents have `hybridbackend.run(function)` as well.
"""

import sys
from types import ModuleType

from lockstep.launch import main, run

__all__ = ["run"]


class _Run(ModuleType):
    """A module that is called as its function."""

    __call__ = staticmethod(run)


sys.modules[__name__].__class__ = _Run

if __name__ == "__main__":
    sys.exit(main(program="hybridbackend.run"))
