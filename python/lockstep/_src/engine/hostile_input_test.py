"""Tests with random environments: a worker accepts its variables, or refuses them with an error that names one."""

import pytest

from lockstep._src.engine.cluster import Cluster
from lockstep.testing.mutations import TF_CONFIGS, feed, named, text_of

pytestmark = pytest.mark.newest_only  # does not use TensorFlow

INPUTS = 1000


def test_tf_config_of_a_worker():
    def reads(data):
        cluster = Cluster.from_environment({"TF_CONFIG": text_of(data)})
        assert 0 <= cluster.rank < cluster.world_size
        assert 0 <= cluster.local_rank < cluster.local_world_size

    assert feed("TF_CONFIG (worker)", named("TF_CONFIG", reads, ValueError), TF_CONFIGS, ValueError, INPUTS) > 10


def test_variables_of_a_launcher():
    names = ("LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_WORLD_SIZE")

    def reads(data):
        environ = dict(zip(names, text_of(data).split("|"), strict=False))
        cluster = Cluster.from_environment(environ)
        assert 0 <= cluster.rank < cluster.world_size

    feed(
        "launcher's variables",
        named("LOCKSTEP_", reads, ValueError),
        [b"0|2|0|2", b"1|2", b"3|4|1|2"],
        ValueError,
        INPUTS,
    )
