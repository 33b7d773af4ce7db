"""Exchange between two hosts that this program emulates on this machine (as root), compared with TCP on their link.

Usage: python benchmarks/hosts.py [--rate 10] [--delay-us 100] [--rounds 15].

Method: two hosts with one worker each (lockstep.testing.emulated_cluster). They are network namespaces, joined by a
link with this rate and this delay in one direction. Workers and link share this machine's cores with all other
programs. The cores limit the rate of such a link in both directions at once. So each figure is measured in turns with a
plain TCP connection over the same link. `best` and `median` are over all rounds; `CPU` is the mean time of worker 0's
process in a round.

- `allreduce`: 64 MiB of float32, from op to op. Each worker sends and receives 64 MiB. So does `TCP`, in both
  directions at the same time. Target: 80 % of it. It is repeated without the delay: the kernel itself is then the link
  and leaves the cores to the workers.
- `step`: a training step that looks up ids of 26 sharded tables and updates their rows, less one of the same form
  without sharding. The link has a delay of 5 ms and no rate limit. The unit is a round trip: the time of a byte to the
  peer and one back over TCP. Target: 3.
- `lookups`: two and four workers on each host train 26 tables with batches of 2048 ids each. Two stages and one stage
  (`use_hierarchical_embedding_lookup`, docs/sharding.md) take turns, over the link and over one with a tenth of its
  rate. The bytes are those that host a sends in a step.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable

BYTES = 64 << 20
TABLES, ROWS, DIM, BATCH = 26, 1000, 16, 64
LARGE = {"rows": 100_000, "dim": 32, "batch": 2048}
LONG_DELAY_US = 5000
PORT, TCP_PORT = 7000, 7001
DEADLINE_S = 180


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rate", type=float, default=10, help="rate of the link, in Gbit/s (%(default)s)")
    flags.add_argument("--delay-us", type=float, default=100, help="delay of the link in one direction (%(default)s)")
    flags.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    flags.add_argument("--worker", choices=["allreduce", "step", "uniform", "zipf"], help=argparse.SUPPRESS)
    return flags.parse_args()


# The worker.


class Tcp:
    """A plain connection between the two workers."""

    def __init__(self, rank: int, address: str):
        if rank == 0:
            with socket.create_server((address, TCP_PORT)) as server:
                self._socket = server.accept()[0]
        else:
            self._socket = _connect(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._out, self._in = bytearray(1 << 20), bytearray(1 << 20)

    def both_ways(self, size: int) -> None:
        """Sends and receives a number of bytes at the same time."""
        sender = threading.Thread(target=self._send, args=(size,))
        sender.start()
        self._receive(size)
        sender.join()

    def there_and_back(self, rank: int) -> None:
        """Sends a byte to the other worker, and receives one."""
        for turn in (0, 1):
            if turn == rank:
                self._send(1)
            else:
                self._receive(1)

    def _send(self, size: int) -> None:
        while size > 0:
            size -= self._socket.send(memoryview(self._out)[: min(size, len(self._out))])

    def _receive(self, size: int) -> None:
        while size > 0:
            size -= self._socket.recv_into(self._in, min(size, len(self._in)))


def _connect(address: str) -> socket.socket:
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return socket.create_connection((address, TCP_PORT))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def worker(flags: argparse.Namespace) -> None:
    """Measures on one worker; worker 0 prints the figures."""
    import tensorflow as tf

    from lockstep._src.collectives import ordered
    from lockstep._src.engine.context import context

    context.ensure_initialized()
    rank = context.rank
    if flags.worker in ("uniform", "zipf"):
        ready = tf.function(lambda: ordered.allreduce(tf.zeros([])))
        calls = {
            name: _step(draw=flags.worker, use_hierarchical_embedding_lookup=name == "two stages", **LARGE)
            for name in ("one stage", "two stages")
        }
        _time(flags, calls, ready)
        return
    tcp = Tcp(rank, os.environ["LOCKSTEP_RENDEZVOUS"].rpartition(":")[0])
    if flags.worker == "allreduce":
        tensor = tf.ones([BYTES // 4])
        reduce = tf.function(ordered.allreduce)
        calls = {"TCP": lambda: tcp.both_ways(BYTES), "allreduce": lambda: reduce(tensor)}
    else:
        calls = {
            "round trip": lambda: tcp.there_and_back(rank),
            "sharded": _step(),
            "plain": _step(sharded=False),
        }
    _time(flags, calls, lambda: tcp.there_and_back(rank))


def _time(flags: argparse.Namespace, calls: dict[str, Callable[[], None]], ready: Callable[[], None]) -> None:
    """Prints the times of the calls, which begin when all are ready, and the bytes that the host sends meanwhile."""
    times = collections.defaultdict(lambda: ([], [], []))
    for number in range(flags.rounds + 3):
        for name, call in calls.items():
            ready()
            started, used, sent = time.perf_counter(), time.process_time(), _sent_bytes()
            call()
            if number >= 3:
                times[name][0].append(time.perf_counter() - started)
                times[name][1].append(time.process_time() - used)
                times[name][2].append(_sent_bytes() - sent)
    if os.environ["LOCKSTEP_RANK"] == "0":
        print("FIGURES", json.dumps(times), flush=True)


def _sent_bytes() -> int:
    """Returns the bytes that the host has sent over its link."""
    with open("/proc/net/dev") as devices:
        (line,) = (line for line in devices if line.strip().startswith("eth0:"))
    return int(line.split()[9])


def _step(
    sharded: bool = True, draw: str = "uniform", rows: int = ROWS, dim: int = DIM, batch: int = BATCH, **options: bool
) -> Callable[[], None]:
    import numpy as np
    import tensorflow as tf

    import hybridbackend.tensorflow as hb

    tf1 = tf.compat.v1
    random = np.random.default_rng(hb.context.rank)
    with tf.Graph().as_default(), hb.scope(**options) if sharded else hb.context.detached():
        with hb.embedding_scope() if sharded else tf1.variable_scope("plain"):
            start = tf1.constant_initializer(0.01)
            tables = [tf1.get_variable(f"table{i}", [rows, dim], initializer=start) for i in range(TABLES)]
        drawn = (random.integers(rows, size=batch) if draw == "uniform" else random.zipf(1.2, batch) for _ in tables)
        ids = [tf.constant(of % rows) for of in drawn]
        found = [tf.nn.embedding_lookup(table, of) for table, of in zip(tables, ids, strict=True)]
        loss = tf.add_n([tf.reduce_sum(tf.square(rows)) for rows in found])
        step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        run = session.make_callable(step)
    return lambda: run()


# The parent.


class Times:
    """The times of one call's rounds, in seconds."""

    def __init__(self, rounds: list[float], used: list[float], sent: list[int]):
        self.best, self.median, self.cpu = min(rounds), statistics.median(rounds), statistics.mean(used)
        self.sent = statistics.median(sent)


def measure(flags: argparse.Namespace, what: str, per_host: int = 1, **link: object) -> dict[str, Times]:
    """Runs the workers over such a link. Returns the times of each call on worker 0."""
    from lockstep.testing.emulated_cluster import Cluster

    command = [sys.executable, __file__, "--worker", what, "--rounds", str(flags.rounds)]
    secret = os.urandom(16).hex()
    with Cluster(2, versions=(4,), **link) as hosts, contextlib.ExitStack() as stack:
        processes = []
        for rank, host in enumerate(host for host in hosts for _ in range(per_host)):
            environment = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "LOCKSTEP_RANK": str(rank),
                "LOCKSTEP_WORLD_SIZE": str(2 * per_host),
                "LOCKSTEP_LOCAL_RANK": str(rank % per_host),
                "LOCKSTEP_LOCAL_WORLD_SIZE": str(per_host),
                "LOCKSTEP_RENDEZVOUS": f"{hosts[0].address}:{PORT}",
                "LOCKSTEP_SECRET": secret,
            }
            files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
            process = host.start(command, env=environment, stdout=files[0], stderr=files[1], cwd=os.getcwd())
            processes.append((process, *files))
        for rank, (process, _, errors) in enumerate(processes):
            if process.wait(DEADLINE_S) != 0:
                errors.seek(0)
                raise RuntimeError(f"worker {rank} ended with exit code {process.returncode}:\n{errors.read()[-4000:]}")
        output = processes[0][1]
        output.seek(0)
        line = next(line for line in output if line.startswith("FIGURES"))
        return {name: Times(*of) for name, of in json.loads(line.removeprefix("FIGURES")).items()}


def main() -> None:
    flags = flags_from()
    if flags.worker:
        worker(flags)
        return
    from lockstep.testing import emulated_cluster

    if why := emulated_cluster.why_not():
        print(f"not measured: {why}")
        return
    for delay_us in dict.fromkeys((flags.delay_us, 0.0)):
        # A link is two cables and the switch between them.
        times = measure(flags, "allreduce", rate=_rate(flags.rate), delay_us=delay_us / 2)
        print(f"two hosts, {flags.rate:g} Gbit/s, {delay_us:g} us one way; 64 MiB both ways, {flags.rounds} rounds")
        print(f"{'':<12}{'best':>10}{'':>14}{'median':>10}{'':>14}{'CPU':>10}")
        for name, of in times.items():
            shown = "".join(f"{s * 1e3:7.1f} ms {BYTES * 8 / s / 1e9:6.2f} Gbit/s" for s in (of.best, of.median))
            print(f"{name:<12}{shown}{of.cpu * 1e3:7.1f} ms")
        tcp, ours = times["TCP"], times["allreduce"]
        best, median = tcp.best / ours.best, tcp.median / ours.median
        print(f"allreduce, of TCP: best {best:.0%}, median {median:.0%} (target 80 %)")
    times = measure(flags, "step", delay_us=LONG_DELAY_US / 2)
    sharded, plain, trip = (times[name].median for name in ("sharded", "plain", "round trip"))
    print(f"two hosts, {LONG_DELAY_US / 1e3:g} ms one way; a step, medians of {flags.rounds} rounds")
    print(f"{TABLES} sharded tables {sharded * 1e3:.1f} ms, plain ones {plain * 1e3:.1f} ms, ", end="")
    print(f"round trip {trip * 1e3:.1f} ms: {(sharded - plain) / trip:.2f} additional round trips (target 3)")
    print(f"two hosts, {flags.delay_us:g} us one way; a step of {TABLES} tables of {LARGE['rows']} rows of ", end="")
    print(f"{LARGE['dim']} numbers, {LARGE['batch']} ids per table and worker")
    print(f"{'link':<12}{'a host has':<12}{'ids':<9}{'':<10}{'best':>10}{'median':>14}{'CPU':>10}{'host a sends':>16}")
    for rate, per_host, draw in itertools.product((flags.rate, flags.rate / 10), (2, 4), ("uniform", "zipf")):
        times = measure(flags, draw, per_host=per_host, rate=_rate(rate), delay_us=flags.delay_us / 2)
        for name, of in times.items():
            print(f"{rate:4g} Gbit/s {per_host:3} workers  {draw:<9}{name:<10}", end="")
            print(f"{of.best * 1e3:7.1f} ms {of.median * 1e3:10.1f} ms {of.cpu * 1e3:6.1f} ms {of.sent / 1e6:12.2f} MB")


def _rate(gbit: float) -> str:
    return f"{gbit * 1000:g}mbit"


if __name__ == "__main__":
    main()
