"""Prints folder and version of an installed package, as `folder;version`, or nothing if there is none.

Usage: locate.py PACKAGE [FOLDER]   FOLDER: of the package itself; else the environment is searched

Nothing is imported: pyarrow may refuse the NumPy that TensorFlow pins, and TensorFlow needs all of its requirements. An
isolated build of pip hides the packages of its environment from imports, but not from this search.
"""

import importlib.metadata
import site
import sys
import sysconfig
from pathlib import Path


def _folders() -> list[Path]:
    paths = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    return [Path(path) for path in paths if path]


def _version(folder: Path) -> str:
    """Returns the version of the distribution that brought this package; several may begin with its name."""
    for distribution in importlib.metadata.distributions(path=[str(folder.parent)]):
        name = str(distribution.metadata["Name"])
        if name.startswith((folder.name, "tf")) and any(
            f.parts[:2] == (folder.name, "include") for f in distribution.files or ()
        ):
            return distribution.version
    return ""


def main(package: str, given: str = "") -> None:
    """Prints folder and version."""
    candidates = [Path(given)] if given else [folder / package for folder in _folders()]
    for folder in candidates:
        if (folder / "include").is_dir():
            print(folder.resolve(), _version(folder), sep=";")
            return


main(*sys.argv[1:])
