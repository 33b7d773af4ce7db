"""Measures Lockstep and other libraries on the same workloads, in turns, and writes one file of figures.

Usage: python benchmarks/peers/compare.py [--quick] [--workloads dlrm-16 ...] [--systems lockstep torchrec ...]

docs/benchmarks.md describes workloads and method. Each round measures every system once, so that a change of the
machine's load affects all of them; the figures are medians of the rounds. Peers have environments of their own, which
`tools/setup.sh peers` makes. A peer whose environment is missing is named in one line and left out.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import workloads

sys.path.append(str(workloads.EXAMPLE))
sys.path.append(str(workloads.ROOT / "benchmarks"))

import jobs  # noqa: E402
import parts  # noqa: E402
import peers_report  # noqa: E402
from figures import Figures  # noqa: E402
from turn import Turn, measure  # noqa: E402

OUT = workloads.ROOT / "build" / "peers" / "figures.json"


def flags_from() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*workloads.WORKLOADS, *parts.TURNS]
    flags.add_argument("--workloads", nargs="+", choices=names, default=names, help="(all)")
    flags.add_argument("--systems", nargs="+", choices=jobs.SYSTEMS, default=list(jobs.SYSTEMS), help="(all)")
    flags.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    flags.add_argument("--quick", action="store_true", help="one round with few steps, to see that everything runs")
    flags.add_argument("--data", type=Path, default=workloads.DATA, help="(%(default)s)")
    flags.add_argument("--json", type=Path, default=OUT, help="the file of figures (%(default)s)")
    flags.add_argument("--publish", action="store_true", help="write tables and picture into the pages")
    return flags.parse_args()


def main() -> None:
    flags = flags_from()
    # The processes of the current turn end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    figures = Figures(machine(), 1 if flags.quick else flags.rounds, flags.quick)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {text}", flush=True)

    for name in flags.workloads:
        turns = parts.TURNS[name](flags.quick) if name in parts.TURNS else list(training(flags, name))
        measure(turns, figures, say)
        figures.save(flags.json)
    print("\n\n".join(peers_report.all_tables(figures).values()))
    if flags.publish:
        peers_report.write(figures)


def training(flags: argparse.Namespace, name: str) -> Iterable[Turn]:
    """Yields a turn for each system that trains a workload."""
    workload = workloads.WORKLOADS[name]
    workload = workload.shortened() if flags.quick else workload
    data = workloads.prepared(workload, flags.data)
    for system in flags.systems:
        if system in workload.systems:
            peer = jobs.SYSTEMS[system].peer
            missing = jobs.missing(peer) if peer else ""
            yield Turn(f"{name}, {system}", missing, _launched(system, workload, data))


def _launched(system: str, workload: workloads.Workload, data: Path) -> Callable[[Figures, int], str]:
    """Returns a turn's function: runs a job and notes its figures."""

    def run(figures: Figures, round_number: int) -> str:
        comparison = figures.comparison(workload.name, "training", workload.title, "samples/s")
        got = jobs.launch(system, workload, data, measures_auc=round_number == 0 and workload.auc_steps > 0)
        measured = comparison.of(jobs.SYSTEMS[system].title)
        measured.values.append(got["samples_per_s"])
        measured.peak_gib.append(got["peak_gib"])
        measured.busy_elsewhere.append(got["busy_elsewhere"])
        auc = f", AUC {got['auc']:.4f}" if "auc" in got else ""
        measured.auc = got.get("auc", measured.auc)
        return (
            f"{got['samples_per_s']:,.0f} samples/s, {got['peak_gib']:.2f} GiB, loss {got['loss']:.4f}{auc}, "
            f"{got['busy_elsewhere']:.2f} cores busy elsewhere"
        )

    return run


def machine() -> str:
    """Returns the processor and the number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{len(os.sched_getaffinity(0))} cores of {model}"


if __name__ == "__main__":
    main()
