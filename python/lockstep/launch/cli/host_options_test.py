"""Hosts and their remote shell, from options, the environment and Slurm."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.cli.host_options import hosts_asked_for, interfaces_of, listed, ssh_of
from lockstep.launch.remote.shells import VARIABLE, Srun, Ssh

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

_SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "2(x2)"}


def _asked(workers: int | None = None, environment: dict[str, str] | None = None, gpus: int = 0, **given: Any):
    names = ("hosts", "hostfile", "ssh_command", "ssh_port", "ssh_identity_file", "ssh_options")
    options = SimpleNamespace(**{**dict.fromkeys(names), **given})
    found = hosts_asked_for(options, workers, lambda: gpus, environment or {})
    return None if found is None else ({host.name: host.slots for host in found[0]}, found[1])


def test_without_options_the_job_is_on_this_machine():
    assert _asked() is None


def test_hosts_with_numbers_are_taken_as_listed():
    hosts, shell = _asked(hosts="a:2,b:1")
    assert hosts == {"a": 2, "b": 1}
    assert isinstance(shell, Ssh)


@pytest.mark.parametrize(("workers", "gpus", "slots"), [(3, 8, 3), (None, 8, 8), (None, 0, 1)])
def test_hosts_without_numbers_have_the_given_number_or_one_worker_for_each_gpu(workers, gpus, slots):
    assert _asked(workers, gpus=gpus, hosts="a,b")[0] == {"a": slots, "b": slots}


def test_a_number_of_workers_is_refused_if_all_hosts_have_one():
    with pytest.raises(LaunchError, match="-n 2 applies to hosts without a number"):
        _asked(2, hosts="a:2,b:2")


def test_a_hostfile_lists_hosts(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\nb slots=1\n")
    assert [host.name for host in listed(None, str(tmp_path / "hosts"))] == ["a", "b"]
    assert listed(None, None) is None


def test_the_hosts_of_an_allocation_are_reached_by_srun_unless_another_shell_is_given():
    hosts, shell = _asked(environment=_SLURM)
    assert hosts == {"a": 2, "b": 2}
    assert isinstance(shell, Srun)
    assert isinstance(_asked(environment={**_SLURM, VARIABLE: "rsh"})[1], Ssh)
    assert isinstance(_asked(environment=_SLURM, ssh_command="rsh")[1], Ssh)


def test_tf_config_comes_before_an_allocation():
    assert _asked(environment={**_SLURM, "TF_CONFIG": "{}"}) is None


def test_an_option_comes_before_the_environments_shell():
    assert ssh_of({VARIABLE: "rsh"}, program=None).program == "rsh"
    assert ssh_of({VARIABLE: "rsh"}, program="myssh").program == "myssh"


def test_interfaces_are_lists_with_commas_from_all_options():
    assert interfaces_of(SimpleNamespace(nics=["eth0,eth1", "ib0"])) == ["eth0", "eth1", "ib0"]
    assert interfaces_of(SimpleNamespace(nics=None)) == []
