"""Originals that a façade shares its import name with: two of them would overwrite each other's files.

Loads neither TensorFlow nor anything else of this project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def refuse_distribution(package: str, names: str, search_path: Iterable[str]) -> None:
    """Raises ImportError if a distribution is installed that provides a façade's package as well.

    Args:
      package: the package; the façade's distribution is called lockstep-PACKAGE.
      names: a pattern of the names of the original's distributions, such as `horovod`.
      search_path: the folders in which Python looks for modules.
    """
    metadata = re.compile(rf"({names})(-[^/]*)?\.(dist|egg)-info")
    for folder in search_path:
        for found in Path(folder or ".").glob("*-info"):
            if match := metadata.fullmatch(found.name):
                name = match[1].replace("_", "-")
                raise ImportError(
                    f"the distribution {name} in {found.parent} provides the package {package} as well as "
                    f"lockstep-{package} does; keep one: pip uninstall {name} (then reinstall lockstep-{package}), or "
                    f"pip uninstall lockstep-{package}"
                )


def refuse_tensorflow(fork: str, distribution: str, file: str, search_path: Iterable[str]) -> None:
    """Raises ImportError if the installed TensorFlow is a fork that has a façade's modules itself.

    Args:
      fork: the name of the fork.
      distribution: the façade's.
      file: a file that the fork has and TensorFlow has not.
      search_path: the folders in which Python looks for modules.
    """
    for folder in search_path:
        if Path(folder or ".", file).is_file():
            raise ImportError(
                f"the TensorFlow in {folder or '.'} is {fork}'s, which has the modules that {distribution} provides "
                f"as well; keep one: install TensorFlow from PyPI, or pip uninstall {distribution}"
            )
