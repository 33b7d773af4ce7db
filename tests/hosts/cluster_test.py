"""The emulated cluster: hosts have separate resources, cables the requested properties, and nothing stays behind."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from lockstep.testing.emulated_cluster import Cluster, wait_until, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

# Sends bytes for some seconds and prints how many bits arrived in each second. Or it sends requests, waits for the
# replies, and prints how long that took.
_SINK = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 7000), family=family) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    if sys.argv[2] == "echo":
        while data := connection.recv(1):
            connection.sendall(data)
    else:
        begin, total = None, 0
        while data := connection.recv(1 << 20):
            begin = begin or time.monotonic()
            total += len(data)
        print(total * 8 / (time.monotonic() - begin))
"""
_SOURCE = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 7000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if sys.argv[2] == "echo":
    times = []
    for _ in range(20):
        begin = time.monotonic()
        connection.sendall(b"x")
        connection.recv(1)
        times.append(time.monotonic() - begin)
    print(min(times))
else:
    block, end = bytes(1 << 20), time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end:
        connection.sendall(block)
"""


def _talk(a, b, kind, *arguments, version=4):
    """Returns the measurement of the source (`echo`) or of the sink (`flood`)."""
    address = b.addresses[version]
    sink = b.start([sys.executable, "-c", _SINK, address, kind], stdout=subprocess.PIPE, text=True)
    assert sink.stdout.readline() == "ready\n"
    measured = a.run([sys.executable, "-c", _SOURCE, address, kind, *arguments])
    return float(measured if kind == "echo" else sink.communicate(timeout=120)[0])


def test_a_host_has_a_name_a_network_processes_and_shared_memory_of_its_own():
    with Cluster(3) as hosts:
        for i, host in enumerate(hosts):
            assert host.name == "abc"[i]
            assert host.run(["hostname"]) == f"{host.name}\n"
            assert f"{host.address}/24" in host.run(["ip", "addr", "show", "dev", "eth0"])
            host.run(["sh", "-c", f"echo {host.name} > /dev/shm/mine"])
            assert host.shared_memory() == ["mine"]
            process = host.start(["sleep", "600"])
            wait_until(lambda host=host: host.pids("sleep"), 120, "a process to start")
            assert host.run(["sh", "-c", "ls /proc | grep -c '^[0-9]'"]).strip() <= "9"
            host.kill()
            assert process.wait(120) == -signal.SIGKILL
        spaces = {os.readlink(f"/proc/{host.pid}/ns/{kind}") for host in hosts for kind in ("net", "uts", "ipc", "pid")}
        assert len(spaces) == 3 * 4
    assert not any(os.path.exists(f"/proc/{host.pid}") for host in hosts)


@pytest.mark.parametrize("version", [4, 6])
def test_hosts_reach_each_other_by_either_protocol_and_by_name(version):
    with Cluster(2, versions=(version,)) as (a, b):
        assert _talk(a, b, "echo", version=version) > 0
        found = a.run([sys.executable, "-c", "import socket; print(socket.getaddrinfo('b', 1)[0][4][0])"])
        assert found.strip() == b.address


def test_a_cable_keeps_its_rate():
    with Cluster(2, rate="200mbit") as (a, b):
        assert 10e6 < _talk(a, b, "flood", 1) < 230e6  # a busy machine may send less


def test_a_cable_has_its_delay_rate_and_losses():
    with Cluster(2, rate="200mbit", delay_us=10_000) as (a, b):
        assert 0.040 <= _talk(a, b, "echo") < 0.2  # two cables there, two back
        assert 5e6 < _talk(a, b, "flood", 2) < 230e6
    with Cluster(2, loss=0.05) as (a, b):
        # TCP repeats a lost message after 0.2 s. Some of twenty one-byte messages and replies are lost.
        assert _talk(a, b, "flood", 1) > 0


@pytest.mark.parametrize("delay_us", [0, 100])
def test_what_is_sent_over_a_cut_cable_arrives_when_it_is_mended(delay_us):
    with Cluster(2, delay_us=delay_us) as (a, b):
        begin = time.monotonic()
        sink = b.start([sys.executable, "-c", _SINK, b.address, "echo"], stdout=subprocess.PIPE, text=True)
        assert sink.stdout.readline() == "ready\n"
        b.cut()
        source = a.start([sys.executable, "-c", _SOURCE, b.address, "echo"], stdout=subprocess.PIPE)
        time.sleep(1.5)
        assert source.poll() is None
        b.join()
        assert source.wait(120) == 0
        assert time.monotonic() - begin > 1.5


def test_a_frozen_host_goes_on_when_it_is_thawed():
    with Cluster(2) as (a, _):
        process = a.start(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def say(line):
            process.stdin.write(line)
            process.stdin.flush()

        say(b"before\n")
        assert process.stdout.readline() == b"before\n"
        a.freeze()
        say(b"frozen\n")
        assert not select.select([process.stdout], [], [], 1)[0]
        assert process.poll() is None
        a.thaw()
        assert process.stdout.readline() == b"frozen\n"
        process.stdin.close()
        assert process.wait(120) == 0


@pytest.mark.parametrize("delay_us", [0, 100])
def test_nothing_stays_of_a_test_that_is_killed(delay_us):
    program = (
        "import os, signal\n"
        "from lockstep.testing.emulated_cluster import Cluster\n"
        f"with Cluster(2, delay_us={delay_us}) as hosts:\n"
        "  hosts[0].start(['sleep', '600'])\n"
        "  print(*(host.pid for host in hosts), flush=True)\n"
        "  os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    firsts = killed.stdout.split()
    assert len(firsts) == 2
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in firsts), 120, "the hosts to end")
