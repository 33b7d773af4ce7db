"""Tests of the line that describes the installation."""

import re

import tensorflow as tf

import lockstep
from lockstep import _build_info


def test_names_the_version_and_tensorflows():
    assert lockstep.buildinfo().startswith("lockstep ")
    minor = ".".join(tf.__version__.split(".")[:2])
    assert minor in {version.rpartition(".")[0] for version in _build_info.TENSORFLOW_VERSIONS}
    assert re.search(
        r", TensorFlow [2.0-9]+( (or|to) [2.0-9]+)?, pyarrow \d+( (or|to) \d+)?, GNU", lockstep.buildinfo()
    )
