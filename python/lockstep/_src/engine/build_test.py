"""Tests of the line that describes the installation."""

import re

import tensorflow as tf

import lockstep
from lockstep import _build_info


def test_names_the_version_and_tensorflows():
    assert lockstep.buildinfo().startswith("lockstep ")
    assert tf.__version__ in _build_info.TENSORFLOW_VERSIONS
    number = r"\d+(\.\d+)*"
    versions = rf"({number}, )*{number}( or {number})?"
    assert re.search(rf", TensorFlow {versions}, pyarrow {versions}, GNU {number}$", lockstep.buildinfo())
    assert re.search(rf"\b{re.escape(tf.__version__)}\b", lockstep.buildinfo().partition(", pyarrow")[0])
