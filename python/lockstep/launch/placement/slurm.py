"""Slurm's variables for a job: this launcher's task in a step, or the hosts of an allocation.

In a step (`srun python -m lockstep.launch ...`) Slurm starts a launcher for each task, and they are one job. In an
allocation without one (`sbatch`, `salloc`) a single launcher starts the workers of all hosts. Source: the manual of
srun, "Output environment variables".
"""

import hashlib
import re
from collections.abc import Mapping
from itertools import accumulate

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.base.places import MOST_WORKERS, check_size
from lockstep.launch.base.ports import PORTS
from lockstep.launch.placement.hosts import LONGEST_NAME, Host
from lockstep.launch.placement.tasks import Tasks

# The value 0 means that Slurm's variables are not read.
SWITCH = "LOCKSTEP_SLURM"
# Steps that Slurm creates itself (interactive, batch, external) have numbers from here on; no user asked for their
# tasks.
_FIRST_OWN_STEP = 0xFFFFFFF0
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?$")
_DIGITS = re.compile("[0-9]+")
_PART = re.compile(r"([\w.-]*)(?:\[([^\[\]]*)\])?")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?$")


def is_asked(environment: Mapping[str, str]) -> bool:
    """Returns whether there are variables of Slurm's, and they are to be read.

    Raises:
      LaunchError: LOCKSTEP_SLURM is neither 0 nor 1.
    """
    value = environment.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise LaunchError(f"{SWITCH}={value!r}: wanted 0 (Slurm's variables are not read) or 1")
    return value == "1" and bool(job_id(environment))


def tasks_of_step(environment: Mapping[str, str]) -> Tasks | None:
    """Returns the tasks of the step that this launcher belongs to; None outside a step, or if the step has one task.

    Ranks are numbered host by host, in the order of Slurm's list.

    Raises:
      LaunchError: the variables contradict each other.
    """
    if not is_asked(environment) or not _in_step(environment):
        return None
    per_node = _tasks_of_nodes(_first(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    nodes = parse_nodes(_first(environment, "SLURM_STEP_NODELIST", "SLURM_NODELIST"))
    node, local = (_number(environment, name) for name in ("SLURM_NODEID", "SLURM_LOCALID"))
    total = _number(environment, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS")
    if total == 1:
        return None
    if len(nodes) != len(per_node) or sum(per_node) != total or node >= len(nodes) or local >= per_node[node]:
        raise LaunchError(
            f"Slurm's variables contradict each other: {total} tasks, {len(nodes)} hosts with "
            f"{', '.join(map(str, per_node[:8]))} tasks; this is task {local} of host {node}"
        )
    check_size(total, "Slurm's variables")
    # Each task needs an address. Only the first one's port is listened at.
    port = _port(environment)
    hosts = [name for name, count in zip(nodes, per_node, strict=True) for _ in range(count)]
    addresses = tuple(f"{name}:{port + i}" for i, name in enumerate(hosts))
    first = [0, *accumulate(per_node)]
    return Tasks(addresses, first[node] + local, job=f"Slurm job {job_id(environment)}, step {_step(environment)}")


def hosts_of_allocation(environment: Mapping[str, str], workers: int | None) -> list[Host] | None:
    """Returns the hosts of this launcher's allocation; None without one, inside a step, or if it has only one host.

    Args:
      environment: The launcher's environment variables.
      workers: The number of workers of each host; by default Slurm's number of tasks for it.

    Raises:
      LaunchError: the variables contradict each other.
    """
    if not is_asked(environment) or _in_step(environment):
        return None
    nodes = parse_nodes(_first(environment, "SLURM_JOB_NODELIST", "SLURM_NODELIST"))
    if len(nodes) == 1:
        return None
    if workers is not None:
        return [Host(name, workers) for name in nodes]
    per_node = _tasks_of_nodes(_first(environment, "SLURM_TASKS_PER_NODE", "SLURM_JOB_TASKS_PER_NODE"))
    if len(per_node) != len(nodes):
        raise LaunchError(
            f"SLURM_TASKS_PER_NODE={environment.get('SLURM_TASKS_PER_NODE')!r} is for {len(per_node)} hosts, and "
            f"SLURM_JOB_NODELIST names {len(nodes)}; give the number of workers of each host: -n"
        )
    return [Host(name, count) for name, count in zip(nodes, per_node, strict=True)]


def srun_command(job: str, host: str) -> list[str]:
    """Returns the words before a command that srun runs once on a host of an allocation, next to other steps.

    The command gets the memory, processors and devices of the allocation there. Its output is not buffered.
    """
    return [
        "srun", f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none",
        "--mpi=none", "--unbuffered", "--export=ALL",
    ]  # fmt: skip


def parse_nodes(text: str) -> list[str]:
    """Reads a list of hosts as Slurm writes it: `node[01-03,7],login,rack[1-2]n[1-2]`.

    Raises:
      LaunchError: it is no such list, or names more hosts than a job can have.
    """
    nodes: list[str] = []
    for entry in _split(text):
        names, at = [""], 0
        while at < len(entry):
            found = _PART.match(entry, at)
            if found is None or found.end() == at:
                raise _wrong_list(text, f": got {entry[:80]!r}, wanted node[01-03,7]")
            at = found.end()
            endings = [""] if found[2] is None else _numbers(found[2], text)
            if len(names) * len(endings) + len(nodes) > MOST_WORKERS:
                raise _wrong_list(text, f" has more than {MOST_WORKERS}")
            if len(names[0]) + len(found[1]) > LONGEST_NAME:
                raise _wrong_list(text, f": got {entry[:80]!r}, wanted names of at most {LONGEST_NAME} characters")
            names = [name + found[1] + ending for name in names for ending in endings]
        if names == [""] or names[0].startswith("-"):
            raise _wrong_list(text, f": got {entry[:80]!r}, wanted names")
        nodes += names
    if len(set(nodes)) != len(nodes):
        raise _wrong_list(text, " names a host twice")
    return nodes


def _wrong_list(text: str, why: str) -> LaunchError:
    return LaunchError(f"Slurm's list of hosts {text[:200]!r}{why}")


def _split(text: str) -> list[str]:
    """Splits a list at commas outside brackets."""
    entries: list[str] = []
    depth = start = 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            entries.append(text[start:at])
            start = at + 1
    return [*entries, text[start:]]


def _numbers(ranges: str, text: str) -> list[str]:
    """Reads ranges: `01-03,7` gives 01, 02, 03, 7."""
    found: list[str] = []
    for entry in ranges.split(","):
        match = _RANGE.match(entry)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or low > high or high - low >= MOST_WORKERS:
            raise _wrong_list(text, f": got the range {entry[:40]!r}, wanted 01-03")
        found += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
        if len(found) > MOST_WORKERS:
            raise _wrong_list(text, f" has more than {MOST_WORKERS}")
    return found


def _tasks_of_nodes(text: str) -> list[int]:
    """Reads counts: `2(x3),1` gives 2, 2, 2, 1."""
    counts: list[int] = []
    for entry in text.split(","):
        match = _TASKS.match(entry.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or not times or not int(match[1]) or len(counts) + times > MOST_WORKERS:
            raise LaunchError(f"Slurm's numbers of tasks {text[:200]!r}: got {entry[:40]!r}, wanted them as in 2(x3),1")
        counts += [int(match[1])] * times
    return counts


def _in_step(environment: Mapping[str, str]) -> bool:
    step = _step(environment)
    return "SLURM_PROCID" in environment and bool(_DIGITS.fullmatch(step)) and int(step[:20]) < _FIRST_OWN_STEP


def job_id(environment: Mapping[str, str]) -> str:
    """Returns the number of the Slurm job."""
    return environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or ""


def _step(environment: Mapping[str, str]) -> str:
    return environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID") or ""


def _port(environment: Mapping[str, str]) -> int:
    """Returns the port of a step's rendezvous: the same for all its launchers, another one for other steps."""
    digest = hashlib.sha256(f"{job_id(environment)}.{_step(environment)}".encode()).digest()
    # The ports behind it are for the addresses of the other tasks.
    return PORTS.start + int.from_bytes(digest[:4], "big") % (len(PORTS) // 2)


def _first(environment: Mapping[str, str], *names: str) -> str:
    for name in names:
        if environment.get(name):
            return environment[name]
    raise LaunchError(f"Slurm's variable {names[0]} is missing; set {SWITCH}=0 for a job that does not run under Slurm")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise LaunchError(f"Slurm's variable {name}: got {text[:40]!r}, wanted a number")
    return int(text)


def place_on_host(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns the local index of this task of a step, and the number of the step's tasks on this host."""
    per_node = _tasks_of_nodes(_first(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    return _number(environment, "SLURM_LOCALID"), per_node[_number(environment, "SLURM_NODEID")]


def tasks_on_this_host(environment: Mapping[str, str]) -> int | None:
    """Returns the number of tasks for which an allocation of one host was made; None in a step, or without a number."""
    if not is_asked(environment) or _in_step(environment) or not asks_for_tasks(environment):
        return None
    return _tasks_of_nodes(_first(environment, "SLURM_TASKS_PER_NODE", "SLURM_NTASKS"))[0]


def asks_for_tasks(environment: Mapping[str, str]) -> bool:
    """Returns whether the allocation was made with a number of tasks. Without one, Slurm reports one for each host."""
    return any(environment.get(name) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
