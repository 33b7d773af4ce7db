"""Hosts with two network interfaces: ranks exchange over the chosen one."""

import json
import sys

import pytest

from lockstep.testing.emulated_cluster import Cluster, wait_until, why_not
from tests.hosts.launched import launched, ssh_on

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.long]

_DEADLINE_S = 120
_BYTES, _TIMES = 4 << 20, 20
_PROGRAM = f"""
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
for _ in range({_TIMES}):
  total = hvd.allreduce(tf.fill([{_BYTES // 4}], float(hvd.rank() + 1)), op=hvd.Sum)
print("sum", np.unique(total).astype(int), flush=True)
"""


def _received(host):
    """Returns the received bytes, by interface."""
    links = json.loads(host.run(["ip", "-s", "-j", "link", "show"]))
    return {link["ifname"]: link["stats64"]["rx"]["bytes"] for link in links}


@pytest.mark.parametrize(
    ("choice", "version", "chosen"),
    [("eth1", 4, "eth1"), ("10.78.0.0/16", 4, "eth1"), ("eth1", 6, "eth1"), ("", 4, "eth0")],
)
def test_ranks_exchange_over_the_interface_that_was_chosen(choice, version, chosen, tmp_path):
    (tmp_path / "program.py").write_text(_PROGRAM)
    options = ["--hosts", "a:2,b:2", *(["--interface", choice] if choice else [])]
    with Cluster(2, versions=(version,), interfaces=2) as hosts, ssh_on(hosts):
        with launched(hosts, options, [sys.executable, tmp_path / "program.py"], tmp_path) as job:
            assert job.await_end(_DEADLINE_S) == 0, job.output()
            assert job.output().count("sum [10]") == 4
        for host in hosts:
            received = _received(host)
            other = {"eth0": "eth1", "eth1": "eth0"}[chosen]
            # In a sum over two hosts, each receives half of the other's terms and half of the sums, or all terms.
            # Launcher and agent use the other interface.
            assert received[chosen] > _TIMES * _BYTES, received
            assert received[other] < _BYTES / 4, received


def _link_local(host):
    """Waits for the link-local address of eth0, and returns it."""
    (link,) = json.loads(host.run(["ip", "-6", "-j", "address", "show", "dev", "eth0"]))
    usable = [each for each in link["addr_info"] if not each.get("tentative")]
    return next((f"{each['local']}%eth0" for each in usable if each["scope"] == "link"), None)


def test_hosts_that_know_each_other_by_addresses_of_their_link_meet(tmp_path):
    program = "import lockstep; lockstep.init(); lockstep.barrier(); print('met', lockstep.rank(), flush=True)"
    with Cluster(2, versions=(6,)) as hosts, ssh_on(hosts):
        other = wait_until(lambda: _link_local(hosts[1]), 20, "an address of the link")
        wait_until(lambda: _link_local(hosts[0]), 20, "an address of the link")
        options = ["--hosts", f"localhost:1,[{other}]:1"]
        with launched(hosts, options, [sys.executable, "-c", program], tmp_path) as job:
            assert job.await_end(_DEADLINE_S) == 0, job.output()
            assert "met 0" in job.output() and "met 1" in job.output()
