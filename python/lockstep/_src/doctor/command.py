"""The command line of `lockstep doctor`."""

import argparse
import dataclasses
import json
import os
import re
import socket
from collections.abc import Callable, Sequence

from lockstep._src.doctor.checks import address_checks, collective_checks, host_checks, times_of
from lockstep._src.doctor.findings import Finding, has_problem
from lockstep._src.doctor.gpus import gpus
from lockstep._src.doctor.installation import installation, probe, python
from lockstep._src.doctor.rank import measure
from lockstep._src.engine.cluster import RANK, Cluster
from lockstep.launch.base.printing import print_text

# The number of ranks of the measurement, unless the user asks for others, and the largest one.
_RANKS = 2
_MOST_RANKS = 1024


def _integer(least: int, most: int) -> Callable[[str], int]:
    """Returns the parser of an option that is an integer of this range."""

    def integer(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted an integer from {least} to {most}")
        return int(text)

    return integer


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    line = argparse.ArgumentParser(
        prog="lockstep doctor",
        description="Checks this machine and this installation, measures a collective between ranks, and says what to "
        "do about each finding. Under a launcher (lockstep run -n 2 lockstep doctor), the job's own ranks measure.",
    )
    where = line.add_mutually_exclusive_group()
    where.add_argument(
        "-n", "--workers", type=_integer(1, _MOST_RANKS), metavar="N", help="ranks of the measurement here (2)"
    )
    where.add_argument("-H", "--hosts", help="host:slots,...: measure between these hosts, and check each of them")
    line.add_argument("--interface", help="for connections between hosts, as for the launcher")
    line.add_argument("--ssh-command", help="a program in place of ssh, as for the launcher")
    line.add_argument(
        "--port",
        type=_integer(1, 65535),
        action="append",
        default=[],
        help="a port that must be free, such as the one of rank 0 in TF_CONFIG; may be repeated",
    )
    line.add_argument("--no-collectives", action="store_true", help="do not start ranks")
    line.add_argument("--quiet", action="store_true", help="show warnings and problems only")
    line.add_argument("--json", action="store_true", help="print one JSON object: host -> a list of findings")
    return line


def main(arguments: Sequence[str]) -> int:
    """Runs the checks and prints the findings; returns 1 if jobs would fail, else 0."""
    options = parser().parse_args(arguments)
    here = socket.gethostname()
    try:
        cluster = Cluster.from_environment(os.environ)
    except ValueError as error:
        cluster = Cluster.from_environment({})
        hosts = {here: [Finding("environment", "problem", str(error), "correct the variable, or unset it")]}
    else:
        hosts = {here: []}
    workers = _RANKS if options.workers is None else options.workers
    launched = cluster.world_size > 1 and RANK in os.environ
    if launched and cluster.local_rank:
        measure()  # The first rank of the host reports.
        return 0
    findings = hosts[here]
    findings += [python(), *installation(found := probe())]
    findings += host_checks(cluster.local_world_size if launched else workers)
    findings += [*gpus(found), *address_checks(cluster, options.port)]
    if "library" in found and not options.no_collectives:
        if launched:
            findings += times_of(measure())
        else:
            measured, others = collective_checks(_launch_options(options, workers))
            findings += measured
            hosts.update({name: seen for name, seen in others.items() if name != here})
    _show(hosts, options.quiet, options.json)
    return int(any(map(has_problem, hosts.values())))


def _launch_options(options: argparse.Namespace, workers: int) -> list[str]:
    words = ["-n", str(workers)] if options.hosts is None else ["--hosts", options.hosts]
    for name in ("interface", "ssh_command"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", value]
    return words


def _show(hosts: dict[str, list[Finding]], quiet: bool, as_json: bool) -> None:
    if as_json:
        print_text(json.dumps({name: [dataclasses.asdict(one) for one in found] for name, found in hosts.items()}))
        return
    for name, found in hosts.items():
        shown = [finding for finding in found if not quiet or finding.state != "ok"]
        if len(hosts) > 1 and shown:
            print_text(f"{name}:")
        for finding in shown:
            print_text("\n".join(finding.lines()))
    states = [finding.state for found in hosts.values() for finding in found]
    print_text(f"problems: {states.count('problem')}, warnings: {states.count('warning')}")
