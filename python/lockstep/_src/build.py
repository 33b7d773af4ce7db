"""What this installation of Lockstep is."""

from __future__ import annotations

import importlib.metadata

import lockstep._build_info as _build_info


def buildinfo() -> str:
    """The version, and what the op library was built against, in one line."""
    version = importlib.metadata.version("lockstep-tf")
    return f"lockstep {version}, TensorFlow {_build_info.TENSORFLOW_VERSION}, {_build_info.COMPILER}"
