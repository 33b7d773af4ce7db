"""The version of this installation of Lockstep."""

import importlib.metadata


def installed_version() -> str:
    """Returns the version, or a text which says that the package is not installed."""
    try:
        return importlib.metadata.version("lockstep-tf")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
