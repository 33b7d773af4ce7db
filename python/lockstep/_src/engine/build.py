"""The version of this installation of Lockstep."""

from __future__ import annotations

import importlib
import importlib.metadata

from lockstep._src.engine import libraries


def buildinfo() -> str:
    """Returns in one line the version, the TensorFlows and pyarrows of the libraries, and the compiler."""
    build_info = importlib.import_module("lockstep._build_info")
    version = importlib.metadata.version("lockstep-tf")
    return f"lockstep {version}, {libraries.described()}, {build_info.COMPILER}"
