"""The checks in their order: of a host, of this installation, of the job's addresses, of collectives."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from lockstep._src.doctor import machine, network
from lockstep._src.doctor.findings import Finding
from lockstep._src.engine.cluster import RANK, WORLD_SIZE, Cluster
from lockstep._src.engine.options import Options
from lockstep.launch.base.sizes import size_of

_TIMEOUT_S = 600
_LINE = re.compile(r"\[\d+\] (\{.*\})$")
# Between ranks of one host an allreduce of 64 MiB moves more than this on any recent machine.
_SLOW_HERE_BYTES_PER_S, _SLOW_BETWEEN_BYTES_PER_S = 200e6, 50e6


def host_checks(ranks: int) -> list[Finding]:
    """Returns the findings about the machine that runs this.

    Args:
      ranks: The number of ranks that a job would have here.
    """
    return [
        machine.cpu_features(),
        machine.processors(ranks),
        machine.memory(ranks),
        _shared_memory(ranks),
        machine.dev_shm(),
        network.loopback(),
        network.network_interfaces(),
        network.own_name(),
        network.ports(),
    ]


def _shared_memory(ranks: int) -> Finding:
    try:
        options = Options.from_environment(os.environ)
    except ValueError as error:
        return Finding("settings", "problem", str(error), "correct the variable, or unset it")
    return machine.shared_memory(ranks, options.shared_bytes_per_rank)


def address_checks(cluster: Cluster, asked: Sequence[int]) -> list[Finding]:
    """Returns the findings about the ports at which rank 0 would listen.

    Args:
      cluster: The job as the environment describes it.
      asked: Further ports.
    """
    findings = [network.port(number) for number in asked]
    if cluster.world_size > 1 and cluster.rank == 0 and cluster.rendezvous:
        host, _, number = (cluster.listen or cluster.rendezvous).rpartition(":")
        findings.append(_first_address(host.strip("[]"), number))
    return findings


def _first_address(host: str, number: str) -> Finding:
    what = "the job's first address"
    if not re.fullmatch("[0-9]{1,5}", number) or not 0 < int(number) < 1 << 16:
        seen = f"{what} is {host}:{number}"
        return Finding("port", "problem", seen, "name a port from 1 to 65535 in TF_CONFIG, or use a launcher")
    return network.port(int(number), host, what)


def times_of(times: dict[str, Any]) -> list[Finding]:
    """Returns the findings about the times that `rank.measure` has returned."""
    where = f"{times['ranks']} ranks on {times['hosts']} host" + ("s" if times["hosts"] > 1 else "")
    rate = times["bytes_per_s"]
    seen = f"64 MiB in {times['seconds'] * 1e3:.1f} ms, {size_of(rate)}/s, between {where}"
    findings = [
        Finding("rendezvous", "ok", f"{where} met in {times['connect_s']:.2f} s"),
        Finding(
            "allreduce, 4 bytes", "ok", f"{times['latency_s'] * 1e6:.0f} us between {where}, as TensorFlow calls it"
        ),
    ]
    if times["ranks"] == 1 or rate >= (_SLOW_BETWEEN_BYTES_PER_S if times["hosts"] > 1 else _SLOW_HERE_BYTES_PER_S):
        return [*findings, Finding("allreduce, 64 MiB", "ok", seen)]
    advice = (
        "choose the hosts' fastest network with --interface, and compare with iperf3"
        if times["hosts"] > 1
        else "look for other load (top), and start no more ranks than processors"
    )
    return [*findings, Finding("allreduce, 64 MiB", "warning", seen, advice)]


def _environment() -> dict[str, str]:
    """Returns the variables of the measurement: a job on the CPU, regardless of the environment's job."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", RANK, WORLD_SIZE)}
    return {**inherited, "LOCKSTEP_SLURM": "0", "LOCKSTEP_TF1": "0", "CUDA_VISIBLE_DEVICES": ""}


def collective_checks(launch_options: Sequence[str]) -> tuple[list[Finding], dict[str, list[Finding]]]:
    """Runs a job that measures collectives, and checks each of its hosts.

    Args:
      launch_options: The launcher's options, such as ["-n", "2"] or ["--hosts", "a:2,b:2"].

    Returns:
      The findings about the collectives, and each host's findings by its name.
    """
    words = [
        sys.executable,
        "-m",
        "lockstep.launch",
        *launch_options,
        sys.executable,
        "-m",
        "lockstep._src.doctor.rank",
    ]
    try:
        job = subprocess.run(
            words, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        seen = f"the job was still running after {_TIMEOUT_S} s"
        return [Finding("collectives", "problem", seen, "run it by hand: " + shlex.join(words))], {}
    hosts: dict[str, list[Finding]] = {}
    findings: list[Finding] = []
    for line in job.stdout.splitlines():
        try:
            found = _LINE.match(line)
            said = json.loads(found[1]) if found else {}
            if "findings" in said:
                hosts[said["host"]] = [Finding(**finding) for finding in said["findings"]]
            elif "times" in said:
                findings = times_of(said["times"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # Another program of the interpreter's start may print such a line.
    if job.returncode or not findings:
        ours = [line for line in job.stderr.splitlines() if line.strip()]
        seen = f"a job with {' '.join(launch_options)} failed with exit code {job.returncode}: {' | '.join(ours[-6:])}"
        return [
            Finding("collectives", "problem", seen, "run it by hand for all its output: " + shlex.join(words))
        ], hosts
    return findings, hosts
