"""The version of this installation of Lockstep."""

from __future__ import annotations

import importlib
import importlib.metadata


def buildinfo() -> str:
    """Returns in one line the version, and the TensorFlow and compiler with which the op library was built."""
    build_info = importlib.import_module("lockstep._build_info")
    version = importlib.metadata.version("lockstep-tf")
    return f"lockstep {version}, TensorFlow {build_info.TENSORFLOW_VERSION}, {build_info.COMPILER}"
