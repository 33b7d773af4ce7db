"""Which workers a launcher starts: how many, on which devices, and where they stand in the job."""

import os
import shutil
from collections.abc import Mapping

from lockstep.launch import cluster, devices
from lockstep.launch.errors import LaunchError
from lockstep.launch.output import Console
from lockstep.launch.tasks import check_reachable, tasks_of


def environments(
    workers: int | None, environment: Mapping[str, str], console: Console, *, deals_gpus: bool = True
) -> list[dict[str, str]]:
    """The environments of this launcher's workers; one for an evaluator or a parameter server, without a rank.

    Args:
      workers: How many are asked for, if it was said.
      environment: The launcher's: devices and TF_CONFIG are read from it, the rest is inherited.
      console: Is told how the devices were read, where there is doubt.
      deals_gpus: Whether each worker gets a GPU of its own; otherwise each sees what this process sees, and
        there is one worker where it was not said how many.

    Raises:
      LaunchError: what is asked for cannot be.
    """
    tasks = tasks_of(environment.get("TF_CONFIG"))
    if tasks.is_beside:
        return [{**environment, "CUDA_VISIBLE_DEVICES": ""}]
    check_reachable(tasks)
    granted = devices.visible_devices(environment) if deals_gpus else devices.Devices()
    if granted.note:
        console.message(granted.note)
    count = _count_workers(workers, granted)
    ids = granted.ids[:count]
    # GPUs that nobody asked for are kept from several workers, each of which would take the memory of all of them.
    several = deals_gpus and count * len(tasks.neighbours) > 1
    assigned = ids if ids or granted.granted or several else None
    planned = cluster.worker_environments(environment, count, assigned, tasks)
    if count > 1 and os.isatty(console.stderr):
        columns, lines = shutil.get_terminal_size()
        for planned_environment in planned:  # What progress bars measure their width by.
            width = columns - len(f"[{planned_environment['LOCKSTEP_RANK']}] ")
            planned_environment.setdefault("COLUMNS", str(width))
            planned_environment.setdefault("LINES", str(lines))
    return planned


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
