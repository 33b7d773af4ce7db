"""The parts of emulated clusters that need no root; tests/hosts/cluster_test.py has the hosts."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest

from lockstep.testing import emulated_cluster
from lockstep.testing.emulated_cluster import Cluster, Host, core_program, switch_program, wait_until, why_not
from lockstep.testing.launching import runs

pytestmark = pytest.mark.newest_only  # no TensorFlow in it


@pytest.mark.parametrize("size", [0, 1, 17, 20])
def test_a_cluster_says_what_it_wants(size):
    with pytest.raises(ValueError, match=f"a cluster of {size} hosts: wanted 2 to 16"):
        Cluster(size)


@pytest.mark.parametrize(
    ("rate", "bits"), [("10gbit", 1e10), ("100mbit", 1e8), ("1.5kbit", 1500), ("0.5gbit", 5e8), (None, 1e15)]
)
def test_rates_are_read_as_tc_writes_them(rate, bits):
    assert emulated_cluster._bits_per_s(rate) == bits


@pytest.mark.parametrize("rate", ["", "gbit", "10", "10tbit", "10 bit", "xmbit"])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match=f"^rate {rate!r}: wanted one like '10gbit' or '100mbit'$"):
        emulated_cluster._bits_per_s(rate)


@pytest.mark.parametrize(
    ("errors", "kind", "text"),
    [
        ("unshare: Operation not permitted\n", PermissionError, "unshare: Operation not permitted"),
        ("Traceback\nOSError: mount: Permission denied\nmore\n", PermissionError, "OSError: mount: Permission denied"),
        ("RTNETLINK answers: Operation not supported", PermissionError, "RTNETLINK answers: Operation not supported"),
        ("Error: Unknown device type.", PermissionError, "Error: Unknown device type."),
        ("first\nNo such file\n", RuntimeError, "No such file"),
        ("\n", RuntimeError, "it ended without an error message"),
    ],
)
def test_an_error_of_a_program_is_a_refusal_of_the_kernel_or_another_one(errors, kind, text):
    error = emulated_cluster._refusal(errors)
    assert (type(error), str(error)) == (kind, text)


@pytest.mark.parametrize(
    ("versions", "interface", "number", "addresses"),
    [
        ((4, 6), "eth0", 0, {4: "10.77.0.1", 6: "fd77::1"}),
        ((6,), "eth0", 2, {6: "fd77::3"}),
        ((4,), "eth1", 1, {4: "10.78.0.2"}),
    ],
)
def test_each_host_has_an_address_in_the_network_of_each_interface(versions, interface, number, addresses):
    assert Cluster(3, versions=versions)._addresses(interface, number) == addresses


def test_the_newest_build_of_a_program_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(emulated_cluster, "__file__", str(tmp_path / "python/lockstep/testing/emulated_cluster.py"))
    programs = [tmp_path / f"build/core-{build}/core/testing/lockstep_emulated_switch" for build in "ab"]
    for age, path in enumerate(programs):
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    assert switch_program() == programs[0]
    with pytest.raises(RuntimeError, match="^no other below .*build: `make test` and `make test-hosts` build it$"):
        core_program("testing", "other")


def test_a_condition_is_awaited():
    values = iter((0, "", "found"))
    assert wait_until(lambda: next(values), 60, "a value") == "found"
    with pytest.raises(AssertionError, match=r"^waited 0\.05 s for rain$"):
        wait_until(lambda: False, 0.05, "rain")


def test_a_machine_without_the_programs_cannot_emulate_hosts(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "nsenter" else None)
    assert why_not.__wrapped__() == "emulated hosts need ip and tc (Debian: iproute2, util-linux)"


def test_a_kernel_that_refuses_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    # In place of the program that creates the namespaces.
    monkeypatch.setattr(emulated_cluster, "_PROGRAM", ("sh", "-c", "echo unshare: Operation not permitted >&2"))
    assert why_not.__wrapped__() == (
        "emulated hosts need root, and a kernel and a container that let it make namespaces: unshare: Operation not "
        "permitted"
    )


@pytest.fixture
def host(monkeypatch):
    """Yields a host that is this machine: its first process has no namespaces of its own."""
    live = "echo $$; cat"
    run = 'shift 2; cd "$1"; shift; exec "$@"'
    code = f'if [ "$1" = live ]; then {live}; else {run}; fi'
    monkeypatch.setattr(emulated_cluster, "_PROGRAM", ("sh", "-c", code, "sh"))
    host = Host("a", "hosts", {4: "10.77.0.1", 6: "fd77::1"})
    yield host
    host.end()


def test_a_program_runs_to_its_end_in_its_folder(host, tmp_path):
    assert host.run(["pwd"]) == "/\n"
    assert host.run(["sh", "-c", "echo $X $(pwd)"], env={"X": "x", "PATH": os.environ["PATH"]}, cwd=tmp_path) == (
        f"x {tmp_path}\n"
    )


def test_a_program_that_fails_is_an_error_with_its_output(host):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        host.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (failed.value.returncode, failed.value.output, failed.value.stderr) == (3, "out\n", "err\n")


def test_a_program_that_takes_too_long_is_killed(host, tmp_path):
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        host.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], timeout_s=1)
    assert time.monotonic() - begin < 300
    with contextlib.suppress(FileNotFoundError):
        wait_until(lambda: not runs(int((tmp_path / "pid").read_text())), 60, "the program to end")


def test_the_end_of_a_host_kills_what_was_started_there(host):
    process = host.start([sys.executable, "-c", "import time; time.sleep(600)"])
    assert (host.address, runs(process.pid)) == ("10.77.0.1", True)
    host.end()
    assert process.returncode == -9


def test_the_address_of_a_host_without_ipv4_is_the_other_one(host):
    host.addresses = {6: "fd77::1"}
    assert host.address == "fd77::1"
