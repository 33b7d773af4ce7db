"""Tests of the line that describes the installation."""

import tensorflow as tf

import lockstep


def test_names_the_version_and_tensorflows():
    assert lockstep.buildinfo().startswith("lockstep ")
    assert f"TensorFlow {tf.__version__}" in lockstep.buildinfo()
