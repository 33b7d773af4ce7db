"""Settings that `horovod.spark.run` reads from the environment. lockstep/spark/training_test.py tests its jobs."""

import pytest

import horovod.spark
from lockstep.launch import LaunchError


def test_a_time_to_start_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "soon")
    with pytest.raises(LaunchError, match="HOROVOD_SPARK_START_TIMEOUT='soon': wanted seconds, 1 or more"):
        horovod.spark.run(print)
