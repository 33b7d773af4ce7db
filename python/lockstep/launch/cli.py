"""The launcher's command line."""

import argparse
import os
import shutil
import sys
from collections.abc import MutableMapping, Sequence

from lockstep.launch import cluster, command, devices
from lockstep.launch.errors import LaunchError
from lockstep.launch.job import Job
from lockstep.launch.output import Console

_DESCRIPTION = """\
Starts the workers of a job on this machine: one for each GPU in CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES, or N on
the CPU; without either, one. When a worker fails, all are ended, and its exit code is returned.
"""


def main(arguments: Sequence[str] | None = None, program: str = "lockstep.launch") -> int:
    """Runs a job as the command line says; does not return where the job is a single worker, which takes our place.

    Args:
      arguments: The command line without the program's name; `sys.argv[1:]` by default.
      program: The module's name, for messages.

    Returns:
      What the process should exit with: 0, the first failure's exit code, or 2 for a request that cannot be met.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=_DESCRIPTION)
    parser.add_argument("-n", "--workers", type=int, metavar="N", help="number of workers on this machine")
    parser.add_argument(
        "--tf1", action="store_true", help="run the program as a TensorFlow 1 script (also LOCKSTEP_TF1=1)"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="what every worker runs, e.g. python main.py --steps 9"
    )
    options = parser.parse_args(arguments)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        parser.error("no command; wanted one like: python main.py")
    try:
        return _launch(words, options.workers, options.tf1, dict(os.environ))
    except LaunchError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code


def _launch(words: list[str], workers: int | None, tf1: bool, environment: MutableMapping[str, str]) -> int:
    if command.wants_tf1(tf1, environment):
        words = command.as_tf1(words)
    machines = cluster.machines_of(environment.get("TF_CONFIG"))
    if machines.evaluator:
        _become(words, {**environment, "CUDA_VISIBLE_DEVICES": ""})
    cluster.check_reachable(machines)
    granted = devices.visible_devices(environment)
    console = Console()
    if granted.note:
        console.message(granted.note)
    count = _count_workers(workers, granted)
    ids = granted.ids[:count]
    # GPUs that nobody asked for are kept from several workers, each of which would take the memory of all of them.
    assigned = ids if ids or granted.granted or count > 1 else None
    environments = cluster.worker_environments(environment, count, assigned, machines)
    if count == 1:
        _become(words, environments[0])
    if os.isatty(console.stderr):
        columns, lines = shutil.get_terminal_size()
        for rank, worker_environment in enumerate(environments):  # What progress bars measure their width by.
            worker_environment.setdefault("COLUMNS", str(columns - len(f"[{rank}] ")))
            worker_environment.setdefault("LINES", str(lines))
    return Job(words, environments, console).run()


def _count_workers(workers: int | None, granted: devices.Devices) -> int:
    if workers is None:
        return max(1, len(granted.ids))
    if workers < 1:
        raise LaunchError(f"-n {workers}: wanted 1 or more workers")
    if granted.ids and workers > len(granted.ids):
        raise LaunchError(
            f"-n {workers}: only {len(granted.ids)} GPUs are visible ({', '.join(granted.ids)}), and each worker needs "
            "one; set CUDA_VISIBLE_DEVICES= (empty) to run on the CPU"
        )
    return workers


def _become(words: list[str], environment: MutableMapping[str, str]) -> None:
    """Puts the only worker in our place, as if it had been started without us: its terminal, signals and exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        raise LaunchError(f"cannot run {words[0]!r}: {error.strerror}", code) from None
