import os
import pickle
import sys
import threading
import time

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.frontends.horovod_request import Request
from lockstep.spark import training
from lockstep.spark.training import run_function
from lockstep.testing import fake_spark

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.fixture(name="spark")
def _spark(monkeypatch):
    return fake_spark.installer(monkeypatch)


def _place():
    return os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"], os.environ.get("WHO")


def _fail():
    if os.environ["HOROVOD_RANK"] == "1":
        raise ValueError("the second fails")
    time.sleep(600)


def _sleep():
    time.sleep(600)


def _run(function, processes=2, timeout_s=120, **how):
    return run_function(function, pickle.dumps, Request(num_proc=processes), timeout_s, **how)


# Promise (horovod.md): `horovod.spark.run` calls a function in each slot, and ends when slots are taken away.
def test_each_slot_gets_a_process_which_knows_its_place(spark):
    spark(2)
    environment = {**os.environ, "WHO": "a test"}
    assert _run(_place, processes=None, environment=environment) == [("0", "2", "a test"), ("1", "2", "a test")]
    assert _run(_place, processes=1) == [("0", "1", None)]


def test_a_process_that_fails_ends_the_others_and_gives_the_slots_back(spark):
    spark(2)
    with pytest.raises(RuntimeError, match="rank 1 failed with exit code 1: ValueError: the second fails"):
        _run(_fail)
    assert _run(_place, processes=1) == [("0", "1", None)]


def test_slots_that_are_not_free_in_time_are_an_error(spark, monkeypatch):
    monkeypatch.setattr(training, "_END_TIMEOUT_S", 0.1)  # Spark ends no task of this test.
    spark(2)
    with pytest.raises(RuntimeError, match="^Spark has ended the job: the stage requires more slots"):
        _run(_place, processes=3)
    spark(2).lost = threading.Event()
    with pytest.raises(RuntimeError, match=r"Spark had 0 of 2 slots free within 0\.1 s"):
        _run(_place, timeout_s=0.1)


# Promise (horovod.md): `horovod.spark.run` calls a function in each slot, and ends when slots are taken away.
def test_a_job_whose_slots_are_taken_away_ends(spark, monkeypatch):
    context = spark(2)
    stage = context.parallelize

    class Cancelled:
        def __init__(self):
            self._stage = stage(range(2), 2)

        def __getattr__(self, name):
            return getattr(self._stage, name)

        def barrier(self):
            return self

        def mapPartitions(self, function):  # noqa: N802
            self._stage.barrier().mapPartitions(function)
            return self

        def collect(self):
            threading.Thread(target=self._stage.collect, daemon=True).start()
            time.sleep(2)
            raise RuntimeError("cancelled by its user")

    monkeypatch.setattr(context, "parallelize", lambda *_: Cancelled())
    with pytest.raises(RuntimeError, match="Spark has ended the job: cancelled by its user"):
        _run(_sleep)


def test_impossible_requests_are_refused(spark, monkeypatch):
    context = spark(2)
    with pytest.raises(LaunchError, match="controller mpi"):
        run_function(_place, pickle.dumps, Request(num_proc=2, controller="mpi"), 5)
    sys.modules["pyspark"].SparkContext._active_spark_context = None
    with pytest.raises(RuntimeError, match="no SparkContext"):
        _run(_place)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(RuntimeError, match="no pyspark here"):
        _run(_place)
    del context
