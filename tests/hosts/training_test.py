"""The main job on two emulated hosts with two workers each: the same model as on one host, also where the network fails."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lockstep.testing.emulated_cluster import Cluster, wait_until, why_not
from tests import ranking_job
from tests.hosts.launched import launched, ssh_on

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.long]

_STEPS = 240
_FLAGS = ("--batch-size", 512, "--model", "wide_and_deep", "--embedding-dim", 8, "--compare-rows", 1000)
_JOB_DEADLINE_S = 240
_CUT_S = 5
# From a fault to the end of everything that it leaves.
_ENDED_WITHIN_S = 10


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    """A prepared folder with all kinds of features."""
    return ranking_job.made_movielens(tmp_path_factory.mktemp("films"))


def _train(films, folder, *more):
    run = (sys.executable, ranking_job.EXAMPLE / "train.py", "--data", films, "--run-dir", folder / "run", *_FLAGS)
    return [*run, "--checkpoint-dir", folder / "checkpoints", "--checkpoint-every", 40, *more]


def _saved_step(folder):
    latest = tf.train.latest_checkpoint(folder / "checkpoints")
    return int(latest.rpartition("-")[2]) if latest else 0


def _finished(job, folder):
    """Report and weights of a job that ends well."""
    assert job.await_end(_JOB_DEADLINE_S) == 0, job.output()
    job.await_no_processes(5)
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder / "checkpoints"))
    weights = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return json.loads((folder / "run" / "report.json").read_text()), weights


@pytest.fixture(scope="module")
def undisturbed(films, tmp_path_factory):
    """Report and weights of a job on two hosts to which nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Cluster(2) as hosts, ssh_on(hosts):
        command = _train(films, folder, "--steps", _STEPS, "--eval-every", 120)
        with launched(hosts, ["--hosts", "a:2,b:2"], command, folder) as job:
            return _finished(job, folder)


def test_two_hosts_train_the_model_that_one_host_trains(films, undisturbed, tmp_path):
    with Cluster(2) as hosts:
        command = _train(films, tmp_path, "--steps", _STEPS, "--eval-every", 120)
        with launched(hosts, ["-n", 4], command, tmp_path) as job:
            report, weights = _finished(job, tmp_path)
    on_two_hosts, weights_of_two = undisturbed
    assert report["workers"] == on_two_hosts["workers"] == 4
    assert report["held_out_auc"] > 0.55
    assert on_two_hosts["held_out_auc"] == pytest.approx(report["held_out_auc"], abs=1e-4)
    assert on_two_hosts["max_score_difference"] < 1e-5
    assert weights.keys() == weights_of_two.keys()
    for name, values in weights.items():
        # Sums of gradients are taken in another order, and errors of rounding grow from step to step.
        if np.issubdtype(values.dtype, np.floating):
            np.testing.assert_allclose(weights_of_two[name], values, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_cut_of_five_seconds_changes_nothing(films, undisturbed, tmp_path):
    with Cluster(2) as hosts, ssh_on(hosts):
        command = _train(films, tmp_path, "--steps", _STEPS, "--eval-every", 120)
        with launched(hosts, ["--hosts", "a:2,b:2"], command, tmp_path) as job:
            wait_until(lambda: _saved_step(tmp_path) >= 40 or job.process.poll() is not None, 120, "a checkpoint")
            hosts[1].cut()
            begin = _saved_step(tmp_path)
            time.sleep(_CUT_S)
            assert _saved_step(tmp_path) <= begin + 40
            hosts[1].join()
            report, weights = _finished(job, tmp_path)
    before, weights_before = undisturbed
    assert report["held_out_auc"] == before["held_out_auc"]
    for name, values in weights.items():
        np.testing.assert_array_equal(values, weights_before[name], err_msg=name)


def _kill(job, hosts):
    hosts[1].kill()


def _lose_power(job, hosts):
    hosts[1].lose_power()


def _cut(job, hosts):
    hosts[1].cut()


def _freeze(job, hosts):
    hosts[1].freeze()


def _kill_agent(job, hosts):
    os.kill(hosts[1].pids("lockstep.launch.agent")[0], signal.SIGKILL)


def _kill_launcher(job, hosts):
    os.kill(hosts[0].pids("hybridbackend.run")[0], signal.SIGKILL)


@pytest.mark.parametrize("fault", [_kill, _lose_power, _cut, _freeze, _kill_agent, _kill_launcher])
def test_the_job_ends_in_time_and_nothing_is_left(fault, films, tmp_path):
    with Cluster(2) as hosts, ssh_on(hosts):
        command = _train(films, tmp_path, "--steps", 10**6, "--eval-every", 10**6)
        with launched(hosts, ["--hosts", "a:2,b:2"], command, tmp_path) as job:
            wait_until(lambda: _saved_step(tmp_path) >= 40 or job.process.poll() is not None, 120, "a checkpoint")
            begin = time.monotonic()
            fault(job, hosts)
            code = job.await_end(30)
            ended = time.monotonic() - begin
            assert ended < _ENDED_WITHIN_S, job.output()
            assert code != 0
            if fault is _freeze:
                # A frozen host ends its processes when it goes on.
                begin = time.monotonic()
                hosts[1].thaw()
            if fault in (_kill, _lose_power):
                assert re.search(r"host b\b", job.output()), job.output()
            for host in hosts:
                wait_until(lambda host=host: not _left(host), _ENDED_WITHIN_S - (time.monotonic() - begin), "all to end")
                assert host.shared_memory() == []
            print(f"{fault.__name__}: launcher after {ended:.1f} s, all after {time.monotonic() - begin:.1f} s")
            print("\n".join(line for line in job.output().splitlines() if "[lockstep]" in line))


def _left(host):
    service = set(host.pids("emulated_ssh.py --serve"))
    return [pid for pid in host.pids() if pid not in service]
