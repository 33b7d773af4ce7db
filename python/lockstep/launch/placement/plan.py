"""Plans the workers of a launcher: their number, their devices, and their places in the job."""

import math
import os
import shutil
from collections.abc import Mapping, Sequence

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.interfaces import NAME_TIMEOUT_S, wait_for_name
from lockstep.launch.base.output import Console
from lockstep.launch.placement import devices, kubeflow, slurm, worker_environment
from lockstep.launch.placement.tasks import Tasks, tasks_of

# Seconds until all workers have to be there. Workers read it too.
TIMEOUT_VARIABLE = "LOCKSTEP_RENDEZVOUS_TIMEOUT"


def environments(
    workers: int | None,
    environment: Mapping[str, str],
    console: Console,
    *,
    assigns_gpus: bool = True,
    tasks: Tasks | None = None,
    tf_config: bool = True,
) -> list[dict[str, str]]:
    """Returns the environments of this launcher's workers; for an evaluator or a parameter server, one without a rank.

    Args:
      workers: The number of workers, if it was given.
      environment: The launcher's environment variables. Devices, TF_CONFIG, Kubeflow Trainer's and Slurm's variables
        are read from it; workers inherit the rest.
      console: Shows how the devices were read, if this may surprise.
      assigns_gpus: Whether each worker gets a GPU of its own. Otherwise each sees the GPUs of this process, and there
        is one worker if no number was given.
      tasks: The tasks of the job, instead of those that the variables name.
      tf_config: Whether several workers get a TF_CONFIG.

    Raises:
      LaunchError: the request cannot be met.
    """
    given = tasks is not None
    if tasks is None and kubeflow.is_asked(environment) and workers is None:
        workers = kubeflow.workers_of_pod(environment)
    tasks = tasks or _tasks_of(environment)
    if tasks.is_auxiliary:
        return [{**environment, "CUDA_VISIBLE_DEVICES": ""}]
    step = None if given or len(tasks.addresses) > 1 else slurm.tasks_of_step(environment)
    granted = devices.visible_devices(environment) if assigns_gpus else devices.Devices()
    ids: Sequence[str] = granted.ids
    if step is not None:
        tasks, workers = step, 1 if workers is None else workers
        ids = _part(ids, workers, *slurm.place_on_host(environment))
    elif not given and not environment.get("TF_CONFIG"):
        _check_allocation(environment)
        if workers is None and not ids:
            workers = slurm.tasks_on_this_host(environment)
    count = _count_workers(workers, ids)
    if granted.note:
        console.message(granted.note)
    ids = ids[:count]
    several = assigns_gpus and count * dict(tasks.by_host)[tasks.hosts[tasks.index]] > 1
    assigned = _assigned(granted, ids, several)
    planned = worker_environment.worker_environments(environment, count, assigned, tasks, tf_config=tf_config)
    if step is None and len(tasks.by_host) > 1:
        wait_for_name(tasks.hosts[0].strip("[]"), console, _name_timeout(environment))
    return with_widths(planned, console) if count > 1 else planned


def check_alone(num_proc: int, environment: Mapping[str, str]) -> None:
    """Refuses a number of workers of the whole job if this launcher starts only a part of them.

    Args:
      num_proc: The value of `-np`.
      environment: The launcher's environment variables.

    Raises:
      LaunchError: TF_CONFIG, a TrainJob, or a step of Slurm's, has several tasks, each with a launcher.
    """
    tasks = _tasks_of(environment)
    if len(tasks.addresses) == 1:
        tasks = slurm.tasks_of_step(environment) or tasks
    if (number := len(tasks.addresses)) > 1:
        raise LaunchError(
            f"-np {num_proc}: this launcher starts the workers of one of {number} tasks; wanted -n, the number of "
            "workers of each task"
        )


def _tasks_of(environment: Mapping[str, str]) -> Tasks:
    """Returns the tasks of TF_CONFIG, or else of a TrainJob; without both, only this launcher's task."""
    if kubeflow.is_asked(environment):
        return kubeflow.tasks_of_train_job(environment)
    return tasks_of(environment.get("TF_CONFIG"))


def _name_timeout(environment: Mapping[str, str]) -> float:
    """Returns for how many seconds to wait for a host's name: as long as workers wait for each other.

    A cluster may publish a host's name only when it has begun the host's task.
    """
    try:
        seconds = float(environment.get(TIMEOUT_VARIABLE, 0))
    except ValueError:  # Workers report the error.
        return NAME_TIMEOUT_S
    return max(NAME_TIMEOUT_S, seconds) if math.isfinite(seconds) else NAME_TIMEOUT_S


def _check_allocation(environment: Mapping[str, str]) -> None:
    """Refuses to start workers only on this host if Slurm's allocation has several hosts."""
    hosts = slurm.hosts_of_allocation(environment, 1)
    if hosts is not None:
        raise LaunchError(
            f"Slurm has given {len(hosts)} hosts ({hosts[0].name}, ...), but workers would start only on this one: "
            f"start the program with srun or `python -m lockstep.launch`, or set {slurm.SWITCH}=0"
        )


def on_this_host(
    worker_variables: Sequence[Mapping[str, str]],
    environment: Mapping[str, str],
    console: Console,
    *,
    assigns_gpus: bool = True,
) -> list[dict[str, str]]:
    """Returns the environments of those workers of a job that are started on this host.

    Args:
      worker_variables: The variables that the job sets for each: at least its place.
      environment: The variables that they inherit; devices are read from it.
      console: As in `environments`.
      assigns_gpus: As in `environments`.

    Raises:
      LaunchError: there are fewer GPUs than workers.
    """
    granted = granted_devices(environment, console) if assigns_gpus else devices.Devices()
    workers = len(worker_variables)
    count = _count_workers(workers, granted.ids, f"{workers} workers on {os.uname().nodename}")
    assigned = _assigned(granted, granted.ids[:count], assigns_gpus and count > 1)
    return worker_environment.on_this_host(environment, worker_variables, assigned)


def granted_devices(environment: Mapping[str, str], console: Console) -> devices.Devices:
    """Returns the GPUs of this host; shows how they were read, if this may surprise."""
    granted = devices.visible_devices(environment)
    if granted.note:
        console.message(granted.note)
    return granted


def _assigned(granted: devices.Devices, ids: Sequence[str], several: bool) -> Sequence[str] | None:
    # Several workers see no GPUs unless a variable grants them: each worker would take the memory of all GPUs.
    return ids if ids or granted.granted or several else None


def with_widths(planned: Sequence[dict[str, str]], console: Console) -> list[dict[str, str]]:
    """Returns the environments with the width of the terminal, if there is one."""
    if not os.isatty(console.stderr):
        return list(planned)
    columns, lines = shutil.get_terminal_size()
    widths = []
    for environment in planned:  # Progress bars read their width from these variables.
        width = columns - len(console.prefix(environment["LOCKSTEP_RANK"], console.stderr))
        widths.append({"COLUMNS": str(width), "LINES": str(lines), **environment})
    return widths


def _part(ids: Sequence[str], workers: int, place: int, tasks: int) -> Sequence[str]:
    """Returns a task's GPUs. Slurm shows each task either all GPUs of its host, or its own."""
    if len(ids) >= workers * tasks:
        return ids[place * workers : (place + 1) * workers]
    return ids


def _count_workers(workers: int | None, ids: Sequence[str], asked: str = "") -> int:
    """Returns the number of workers; `asked` names the request in messages."""
    if workers is None:
        return max(1, len(ids))
    if workers < 1:
        raise LaunchError(f"-n {workers}: wanted 1 or more workers")
    if ids and workers > len(ids):
        raise LaunchError(
            f"{asked or f'-n {workers}'}: only {len(ids)} GPUs are visible ({', '.join(ids)}), and each worker needs "
            "one; set CUDA_VISIBLE_DEVICES= (empty) to run on the CPU"
        )
    return workers
