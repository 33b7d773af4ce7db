"""Refuses to run beside the original library that has the façade's import name: both would install the same files.

This module imports neither TensorFlow nor other modules of this project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def refuse_distribution(package: str, names: str, search_path: Iterable[str], distribution: str = "") -> None:
    """Raises ImportError if another installed distribution also provides a façade's package.

    Args:
      package: the package.
      names: a pattern of the names of the original's distributions, such as `horovod`.
      search_path: the folders in which Python looks for modules.
      distribution: the façade's distribution; by default lockstep-PACKAGE.
    """
    distribution = distribution or f"lockstep-{package}"
    metadata = re.compile(rf"({names})(-[^/]*)?\.(dist|egg)-info")
    for folder in search_path:
        for found in Path(folder or ".").glob("*-info"):
            if match := metadata.fullmatch(found.name):
                name = match[1].replace("_", "-")
                raise ImportError(
                    f"the distribution {name} in {found.parent} provides the package {package}, and {distribution} "
                    f"provides it too; keep one: pip uninstall {name} (then reinstall {distribution}), or "
                    f"pip uninstall {distribution}"
                )


def refuse_tensorflow(fork: str, distribution: str, file: str, search_path: Iterable[str]) -> None:
    """Raises ImportError if the installed TensorFlow is a fork that has a façade's modules itself.

    Args:
      fork: the name of the fork.
      distribution: the façade's distribution.
      file: a file that the fork has, but TensorFlow does not.
      search_path: the folders in which Python looks for modules.
    """
    for folder in search_path:
        if Path(folder or ".", file).is_file():
            raise ImportError(
                f"the TensorFlow in {folder or '.'} is {fork}'s, which already has the modules that {distribution} "
                f"provides; keep one: install TensorFlow from PyPI, or pip uninstall {distribution}"
            )
