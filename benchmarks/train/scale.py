"""Costs of a step of sharded tables on more hosts than a test can have: computed, from costs measured on this machine.

Usage: python benchmarks/train/scale.py [--hosts 8 64 512] [--gbit 25 100] [--rows 1e9 1e11] [--ids 65536]

It measures two costs. That of an id is a step of two workers here (vocabulary.py), divided by the ids of a worker: the
row of the id is looked up, sent, and changed by Adagrad. That of a message is one between two processes of this
machine, a lower bound of one between hosts. The rest are the formulas of docs/algorithms.md: messages, bytes, and the
memory of connections. The bytes are an upper bound on hosts of four workers and more: there, lookups have two stages,
and an id that several workers of a host look up goes to another host once.

| column | is |
| --- | --- |
| workers | of a host; a job has at most 512 |
| table GB | memory of the tables' rows and of one slot on a host |
| ids ms | work of a worker on the rows that it asks for and serves |
| bytes ms | time in which a host's network sends what its workers send to other hosts |
| messages ms | work of a leader for its messages |
| windows GB | memory of a host's windows for messages |
| first | the largest of the three times: what a faster step needs first |
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import time
from collections.abc import Callable

import turns

MAX_WORKERS, MAX_PER_HOST = 512, 16
# Exchanges of a step between hosts. In each, a leader sends sizes and data to each other host.
EXCHANGES = 3
# Hosts of so many workers make as many exchanges inside, in which leaders send only sizes.
TWO_STAGES = 4
HEAD_BYTES, FIRST_BYTES = 32, 512 << 10  # of a message; the first one of two hosts in an exchange is not longer
WINDOW_BYTES = 2 << 20  # for each other host, on each worker
SLOTS = 1
MEASURED_ROWS, MEASURED_IDS = 10**7, 16384


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--hosts", type=int, nargs="+", default=[8, 64, 512], help="(%(default)s)")
    flags.add_argument("--gbit", type=float, nargs="+", default=[25, 100], help="network of a host (%(default)s)")
    flags.add_argument("--rows", type=float, nargs="+", default=[1e9, 1e10, 1e11], help="of all tables (%(default)s)")
    flags.add_argument("--dim", type=int, default=16, help="width of the tables (%(default)s)")
    flags.add_argument("--ids", type=int, default=65536, help="distinct ids of a worker's step (%(default)s)")
    return flags.parse_args()


def best_s(work: Callable[[], object], times: int = 7) -> float:
    """Returns the seconds of the fastest of several runs: other load only makes them slower."""
    durations = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return min(durations)


def id_s(dim: int) -> float:
    """Returns the seconds of an id, in a table that is larger than the caches."""
    flags = argparse.Namespace(vocabulary=MEASURED_ROWS, dim=dim, ids=MEASURED_IDS)
    script = os.path.join(os.path.dirname(__file__), "vocabulary.py")
    return turns.launch(script, flags, ["vocabulary", "dim", "ids"], 2)["step"] / 1e3 / MEASURED_IDS


def echo(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := peer.recv(64):
            peer.sendall(data)


def message_s(count: int = 2000) -> float:
    """Returns the seconds of a message of 64 bytes between two processes, one after another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = multiprocessing.Process(target=echo, args=(server.getsockname(),), daemon=True)
        other.start()
        with server.accept()[0] as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def both_ways() -> None:
                for _ in range(count // 2):
                    peer.sendall(bytes(64))
                    peer.recv(64)

            seconds = best_s(both_ways) / count
        other.join(10)
    return seconds


def main() -> None:
    flags = flags_from()
    of_id, of_message = id_s(flags.dim), message_s()
    print(f"measured: {of_id * 1e6:.2f} us for an id, {of_message * 1e6:.1f} us for a message", flush=True)
    print(f"{flags.ids} distinct ids of a worker's step, width {flags.dim}, float32, {SLOTS} slot")
    print("hosts workers gbit     rows  table GB   ids ms  bytes ms  messages ms  windows GB  first")
    row_bytes = 4 * flags.dim
    for hosts in flags.hosts:
        workers = min(MAX_PER_HOST, MAX_WORKERS // hosts)
        # A worker serves as many ids as it asks for: they are spread evenly. Two ways for rows: values and gradients.
        sent = workers * flags.ids * (8 + 2 * row_bytes) * (hosts - 1) / hosts
        ids_ms = flags.ids * of_id * 1e3
        of_pair = flags.ids * row_bytes / hosts + HEAD_BYTES  # of rows, or of gradients
        sizes = EXCHANGES * (2 if workers >= TWO_STAGES else 1)
        data = EXCHANGES if of_pair <= FIRST_BYTES else 2 * EXCHANGES - 1  # ids are short
        messages_ms = (sizes + data) * (hosts - 1) * of_message * 1e3
        windows = workers * WINDOW_BYTES * (hosts - 1)
        for gbit in flags.gbit:
            bytes_ms = sent * 8 / (gbit * 1e9) * 1e3
            times = {"ids": ids_ms, "bytes": bytes_ms, "messages": messages_ms}
            for rows in flags.rows:
                table = rows * row_bytes * (1 + SLOTS) / hosts
                print(
                    f"{hosts:5}{workers:8}{gbit:5.0f}{rows:9.0e}{table / 1e9:10.1f}{ids_ms:9.1f}{bytes_ms:10.1f}"
                    f"{messages_ms:13.1f}{windows / 1e9:12.1f}  {max(times, key=times.get)}"
                )


if __name__ == "__main__":
    main()
