"""What this installation of Lockstep is."""

from __future__ import annotations

import importlib
import importlib.metadata


def buildinfo() -> str:
    """The version, and what the op library was built against, in one line."""
    build_info = importlib.import_module("lockstep._build_info")
    version = importlib.metadata.version("lockstep-tf")
    return f"lockstep {version}, TensorFlow {build_info.TENSORFLOW_VERSION}, {build_info.COMPILER}"
