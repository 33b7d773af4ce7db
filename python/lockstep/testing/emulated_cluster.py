"""Hosts of a cluster, emulated on this machine, for tests of communication between hosts.

Each host is a set of Linux namespaces. It has its own network, name, processes, shared memory and /etc/hosts. All hosts
share the machine's files, as with a network file system. A switch connects them. Its cables have a rate, a delay and
losses, and can be cut.

    with Cluster(2, rate="10gbit") as (a, b):
      process = b.start(["python", "worker.py"], env={...}, stdout=log)
      a.cut()                       # cuts the cable: nothing arrives, and no interface reports it
      a.join()                      # repairs the cable
      b.freeze()                    # stops all of its processes
      b.kill()                      # kills all of its processes
      b.lose_power()                # kills all of its processes, and does not close their connections

Without delay and losses, the switch is the kernel's bridge, and its token bucket limits the rate, at almost no cost. A
delay or a loss needs `emulated_switch`, a program that forwards the frames in user space (`core/testing`), because few
container kernels have netem. It forwards about 7 Gbit/s, and uses one CPU per direction.

Nothing remains after a test. Hosts end with the process that created them (`emulated_host`), and nothing of them has a
name on the machine. The machine's own network is not changed.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.testing.launching import wait_for

# The networks by interface and version of the Internet Protocol.
_NETWORKS = {"eth0": {4: "10.77.0.0/24", 6: "fd77::/64"}, "eth1": {4: "10.78.0.0/24", 6: "fd78::/64"}}
_DEADLINE_S = 120
_MTU = 9000
_PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("emulated_host.py")))
_PROGRAMS = ("ip", "nsenter", "tc")


@functools.cache
def why_not() -> str:
    """Returns the reason why this machine cannot emulate hosts, as a sentence; empty if it can."""
    missing = [name for name in _PROGRAMS if not shutil.which(name)]
    if missing:
        return f"emulated hosts need {' and '.join(missing)} (Debian: iproute2, util-linux)"
    try:
        with Cluster(2, rate="1gbit") as (a, _):
            a.run(["true"])
        os.close(os.open("/dev/net/tun", os.O_RDWR))  # the switch in user space needs it
    except (OSError, RuntimeError) as error:
        return f"emulated hosts need root, and a kernel and a container that let it make namespaces: {error}"
    return ""


class Host:
    """One host; `Cluster` creates it.

    Attributes:
      name: its host name, `a`, `b`, ..., under which /etc/hosts has its addresses.
      addresses: its addresses by version of the Internet Protocol, 4 and 6.
      pid: the number, on this machine, of the first process that keeps the host alive.
    """

    def __init__(self, name: str, hosts_file: Path, addresses: Mapping[int, str]):
        self.name, self.addresses = name, dict(addresses)
        self._switch: Any = None
        self._started: list[subprocess.Popen] = []
        self._keeper = subprocess.Popen(
            [*_PROGRAM, "live", name, str(hosts_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None and self._keeper.stderr is not None  # Both are pipes.
        pid = self._keeper.stdout.readline()
        if not pid:
            self.end()
            raise _refusal(self._keeper.stderr.read())
        self.pid = int(pid)
        self._processes = os.readlink(f"/proc/{self.pid}/ns/pid")

    @property
    def address(self) -> str:
        """The address under which other hosts reach it: its IPv4 address if it has one."""
        return self.addresses.get(4) or self.addresses[6]

    def start(
        self, command: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: object = "/", **options: Any
    ) -> subprocess.Popen:
        """Starts a program on the host.

        Args:
          command: the program and its arguments.
          env: its whole environment; None: this process's.
          cwd: the folder in which it starts.
          **options: options of subprocess.Popen.

        Returns:
          A process on this machine that ends when the program ends, with its exit code. Killing it kills the program.
          Other signals to the program need its process number (`pids`).
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        words = [*_PROGRAM, "run", self.pid, cwd, *command]
        process = subprocess.Popen([*map(str, words)], env=None if env is None else dict(env), **options)
        self._started.append(process)
        return process

    def run(self, command: Sequence[object], *, timeout_s: float = _DEADLINE_S, **options: Any) -> str:
        """Runs a program to its end, and returns its output. Raises CalledProcessError, with stderr, if it fails."""
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        try:
            out, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, [*map(str, command)], out, errors)
        return out

    def pids(self, containing: str = "") -> list[int]:
        """Returns this machine's numbers of the host's processes, except the first one, in the order of their start.

        Args:
          containing: returns only processes with this text in their command lines.
        """
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry.name}/ns/pid") != self._processes:
                    continue
                line = Path(f"/proc/{entry.name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                started = int(Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2].split()[19])
                if line and containing in line:  # a zombie has no command line
                    found.append((started, int(entry.name)))
        return [pid for _, pid in sorted(found)]

    def shared_memory(self) -> list[str]:
        """Returns the names of the files in its /dev/shm."""
        return sorted(os.listdir(f"/proc/{self.pid}/root/dev/shm"))

    def freeze(self) -> None:
        """Stops all of its processes."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continues all of its processes."""
        self._signal_all(signal.SIGCONT)

    def kill(self) -> None:
        """Kills all of its processes at once; the host stays, and its kernel closes their connections."""
        self.freeze()  # so that no process sees the death of another one
        self._signal_all(signal.SIGKILL)

    def lose_power(self) -> None:
        """Cuts the cable, then kills all of its processes, so that no other host learns of their end."""
        self.cut()
        self.kill()

    def cut(self) -> None:
        """Cuts its cable: nothing arrives any more at either end, and no interface notices."""
        self._switch.set_cut(self, True)

    def join(self) -> None:
        """Repairs its cable."""
        self._switch.set_cut(self, False)

    def enter(self, *lines: str, batch: str = "ip") -> None:
        """Runs lines of commands for `ip` or `tc` in its network."""
        words = ["nsenter", "-t", str(self.pid), "-n", batch, "-batch", "-"]
        done = subprocess.run(words, input="\n".join(lines), capture_output=True, text=True, timeout=_DEADLINE_S)
        if done.returncode:
            raise _refusal(f"host {self.name}: {batch}: {done.stderr.strip()} in: {'; '.join(lines)}")

    def end(self) -> None:
        """Ends the host and all of its processes."""
        assert self._keeper.stdin is not None  # A pipe, at whose end the host ends.
        self._keeper.stdin.close()
        try:
            self._keeper.wait(_DEADLINE_S)
        finally:
            for process in self._started:
                process.kill()
                process.wait()

    def _signal_all(self, number: int) -> None:
        # Repeats until no new process appears, because one of them may just have started another.
        done: set[int] = set()
        while more := [pid for pid in self.pids() if pid not in done]:
            for pid in more:
                _kill(pid, number)
            done.update(more)


class Cluster:
    """Several hosts and the switch that connects them; a context manager that returns the hosts.

    Args:
      size: the number of hosts, 2 to 16.
      versions: versions of the Internet Protocol, some of 4 and 6.
      rate: the rate of each cable, in each direction, as `tc` writes it: "10gbit", "100mbit"; None: no limit.
      delay_us: the delay of each cable; a frame from one host to another passes two cables.
      loss: the fraction of frames that are lost on a cable.
      interfaces: 2 adds a second interface, `eth1`, to each host. It has a network of its own without host names. Its
        cables have no limit and are never cut.

    Raises:
      ValueError: `size` is out of range.
      PermissionError: this process may not create namespaces, or the kernel has no bridges or virtual interfaces.
      RuntimeError: the machine lacks something else; the message names it.
    """

    def __init__(
        self,
        size: int = 2,
        *,
        versions: Sequence[int] = (4, 6),
        rate: str | None = None,
        delay_us: float = 0,
        loss: float = 0,
        interfaces: int = 1,
    ):
        if not 2 <= size <= 16:
            raise ValueError(f"a cluster of {size!r} hosts: wanted 2 to 16")
        self._versions, self._rate, self._delay_us, self._loss = tuple(versions), rate, delay_us, loss
        self._more = list(_NETWORKS)[1:interfaces]
        self._names = [chr(ord("a") + i) for i in range(size)]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> list[Host]:
        # The hosts keep their mounted files after the folder is removed. It is removed at the end of this function, so
        # that a killed test leaves no folder.
        with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(prefix="lockstep_hosts_") as name:
            folder = Path(name)
            addresses = [self._addresses("eth0", i) for i in range(len(self._names))]
            lines = ["127.0.0.1 localhost", "::1 localhost"]
            lines += [f"{a} {name}" for name, of in zip(self._names, addresses, strict=True) for a in of.values()]
            (folder / "hosts").write_text("\n".join(lines) + "\n")
            hosts = []
            for name, of in zip(self._names, addresses, strict=True):
                hosts.append(Host(name, folder / "hosts", of))
                stack.callback(hosts[-1].end)
            switch: _Bridge | _Program
            if self._delay_us or self._loss:
                switch = stack.enter_context(_program(hosts, self._rate, self._delay_us, self._loss))
            else:
                switch = _Bridge(hosts, folder / "hosts", self._rate)
                stack.callback(switch.end)
            for interface in self._more:
                stack.callback(_Bridge(hosts, folder / "hosts", None, interface).end)
            for i, host in enumerate(hosts):
                host._switch = switch
                for interface in ("eth0", *self._more):
                    # Without nodad, an IPv6 address cannot be used for one or two seconds.
                    lines = [
                        f"addr add {of}/{_prefix(v)} dev {interface}{' nodad' * (v == 6)}"
                        for v, of in self._addresses(interface, i).items()
                    ]
                    host.enter(f"link set {interface} mtu {_MTU} up", *lines)
            self._stack = stack.pop_all()
            return hosts

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _addresses(self, interface: str, number: int) -> dict[int, str]:
        networks = _NETWORKS[interface]
        return {version: str(ipaddress.ip_network(networks[version])[number + 1]) for version in self._versions}


class _Bridge:
    """A kernel bridge, in a network of its own, with a port for each host."""

    def __init__(self, hosts: Sequence[Host], hosts_file: Path, rate: str | None, interface: str = "eth0"):
        self._host = Host("switch", hosts_file, {})
        self._ports = {host.name: f"port-{host.name}" for host in hosts}
        lines = ["link add bridge type bridge forward_delay 0", f"link set bridge mtu {_MTU} up"]
        for host in hosts:
            port = self._ports[host.name]
            lines += [
                f"link add {port} mtu {_MTU} type veth peer name {interface} netns {host.pid}",
                f"link set {port} master bridge up",
            ]
        self._host.enter(*lines)
        if rate is not None:
            # With a bucket of 512 KiB, a clock tick of 0.4 ms is short enough for 10 Gbit/s.
            shape = f"root tbf rate {rate} burst 512kb latency 20ms"
            self._host.enter(*(f"qdisc add dev {port} {shape}" for port in self._ports.values()), batch="tc")
            for host in hosts:
                host.enter(f"qdisc add dev {interface} {shape}", batch="tc")

    def set_cut(self, host: Host, is_cut: bool) -> None:
        """Cuts or repairs a cable at the bridge's end; the host's own end does not change."""
        self._host.enter(f"link set {self._ports[host.name]} {'nomaster' if is_cut else 'master bridge'}")

    def end(self) -> None:
        """Ends the bridge."""
        self._host.end()


class _Program:
    """The switch in user space."""

    def __init__(self, process: subprocess.Popen, hosts: Sequence[Host]):
        self._process, self._ports = process, {host.name: i for i, host in enumerate(hosts)}

    def set_cut(self, host: Host, is_cut: bool) -> None:
        """Cuts or repairs a cable."""
        assert self._process.stdin is not None and self._process.stdout is not None  # Both are pipes.
        self._process.stdin.write(f"{'cut' if is_cut else 'join'} {self._ports[host.name]}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise RuntimeError("emulated_switch has ended")


@contextlib.contextmanager
def _program(hosts: Sequence[Host], rate: str | None, delay_us: float, loss: float) -> Iterator[_Program]:
    words = [switch_program(), _bits_per_s(rate), delay_us, loss, *(host.pid for host in hosts)]
    process = subprocess.Popen(
        list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None  # Both are pipes.
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("emulated_switch did not start: its errors are above")
        yield _Program(process, hosts)
    finally:
        process.stdin.close()
        try:
            process.wait(_DEADLINE_S)
        finally:
            process.kill()


def switch_program() -> Path:
    """Returns the path of the switch in user space, which is built with the core's tests.

    Raises:
      RuntimeError: it is not built.
    """
    return core_program("testing", "lockstep_emulated_switch")


def core_program(folder: str, name: str) -> Path:
    """Returns the path of a program that is built with the core's tests.

    Raises:
      RuntimeError: it is not built.
    """
    builds = Path(__file__).resolve().parents[3] / "build"
    found = sorted(builds.glob(f"core*/core/{folder}/{name}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RuntimeError(f"no {name} below {builds}: `make test` and `make test-hosts` build it")
    return found[-1]


def _bits_per_s(rate: str | None) -> float:
    if rate is None:
        return 1e15
    for unit, bits in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        with contextlib.suppress(ValueError):
            if rate.endswith(unit):
                return float(rate.removesuffix(unit)) * bits
    raise ValueError(f"rate {rate!r}: wanted one like '10gbit' or '100mbit'")


def _refusal(errors: str) -> Exception:
    """Returns the exception for a program's errors: PermissionError if the kernel refuses, else RuntimeError."""
    words = "not permitted", "Permission denied", "not supported", "Unknown device type"
    lines = errors.strip().splitlines() or ["it ended without an error message"]
    refusals = [line for line in lines if any(word in line for word in words)]
    return PermissionError(refusals[-1]) if refusals else RuntimeError(lines[-1])


def _prefix(version: int) -> str:
    return _NETWORKS["eth0"][version].partition("/")[2]


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(condition: Any, timeout_s: float, what: str) -> Any:
    """Waits until a condition is true, and returns its value. Raises AssertionError after `timeout_s`."""
    return wait_for(condition, what, timeout_s)


if __name__ == "__main__":
    # `make test-hosts` and `make test-faults` must not pass on a machine that cannot emulate hosts.
    sys.exit(f"error: {why_not()}" if why_not() else 0)
