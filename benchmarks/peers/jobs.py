"""Starts the processes of one job of a system, waits for their figures, and ends them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lockstep.launch.placement.worker_environment import KEEP_MEMORY
from process import Job, peak_gib
from turn import TurnError
from workloads import PYTHONPATH, ROOT, Workload

PEERS = ROOT / ".venv-peers"
DEADLINE_S = 240
SERVERS = 2  # parameter servers of a job, which divide large tables
_END_S = 10  # time between SIGTERM and SIGKILL


@dataclasses.dataclass(frozen=True)
class Command:
    """A process to start: its words, and variables in addition to this process's."""

    words: list[str]
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class System:
    """A system.

    Attributes:
      title: its name in table and picture.
      commands: returns the processes of a job.
      peer: the name of its environment; empty for the one of this process.
      workers: returns the number of processes that train.
      is_synchronous: whether it trains one model, whose AUC has a meaning.
    """

    title: str
    commands: Callable[[Job], list[Command]]
    peer: str = ""
    workers: Callable[[Workload], int] = lambda workload: workload.workers
    is_synchronous: bool = True


def missing(peer: str) -> str:
    """Returns why a peer cannot run here, or an empty text."""
    home = PEERS / peer
    return "" if (home / "made").exists() else f"{home.relative_to(ROOT)} is missing: run tools/setup.sh peers"


def _apart(script: str, python: str = sys.executable) -> Callable[[Job], list[Command]]:
    """Returns the commands of workers that this program starts, each with its rank."""

    def commands(job: Job) -> list[Command]:
        size = SYSTEMS[job.system].workers(job.workload)
        shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_ports(1)[0])}
        return [Command([python, *_worker(script, job)], {**shared, "RANK": str(rank)}) for rank in range(size)]

    return commands


def _lockstep(job: Job) -> list[Command]:
    launcher = [sys.executable, "-m", "lockstep", "run", "-n", str(job.workload.workers)]
    return [Command([*launcher, sys.executable, *_worker("tensorflow_worker.py", job)])]


def _horovod(job: Job) -> list[Command]:
    home, size = PEERS / "horovod/bin", str(job.workload.workers)
    launcher = [str(home / "horovodrun"), "-np", size, "-H", f"localhost:{size}", "--gloo"]
    return [Command([*launcher, str(home / "python"), *_worker("horovod_worker.py", job)])]


def _parameter_server(job: Job) -> list[Command]:
    size = job.workload.workers
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(size + SERVERS)]
    cluster = {"worker": addresses[:size], "ps": addresses[size:]}
    return [
        Command(
            [sys.executable, *_worker("parameter_server.py", job)],
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})},
        )
        for kind in cluster
        for index in range(len(cluster[kind]))
    ]


_TORCH = str(PEERS / "torchrec/bin/python")
SYSTEMS = {
    "lockstep": System("Lockstep", _lockstep),
    "plain": System("TensorFlow, one process", _apart("tensorflow_worker.py"), workers=lambda workload: 1),
    "apart": System("TensorFlow, no communication", _apart("tensorflow_worker.py"), is_synchronous=False),
    "dense": System("the dense part, no communication", _apart("tensorflow_worker.py"), is_synchronous=False),
    "horovod": System("Horovod", _horovod, peer="horovod"),
    "torchrec": System("TorchRec", _apart("torch_worker.py", _TORCH), peer="torchrec"),
    "fbgemm": System(
        "FBGEMM, no communication", _apart("torch_worker.py", _TORCH), peer="torchrec", is_synchronous=False
    ),
    "ps": System("parameter server", _parameter_server),
}


def _worker(script: str, job: Job) -> list[str]:
    return [str(Path(__file__).with_name(script)), str(job.folder)]


def _free_ports(count: int) -> list[int]:
    """Returns ports of this host that no process uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def launch(system: str, workload: Workload, data: Path, measures_auc: bool) -> dict[str, float]:
    """Runs a job once. Returns its figures; `auc` is among them if it was measured.

    Raises:
      TurnError: a process failed, or the job did not end within its deadline.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep_peers_") as folder:
        job = Job(Path(folder), system, workload, str(data), measures_auc and SYSTEMS[system].is_synchronous)
        job.save()
        with _started(job) as processes:
            return _figures(job, processes)


@contextlib.contextmanager
def _started(job: Job) -> Iterator[list[subprocess.Popen]]:
    """Starts the processes of a job, and ends them with the block."""
    processes: list[subprocess.Popen] = []
    try:
        for number, command in enumerate(SYSTEMS[job.system].commands(job)):
            variables = {"PYTHONPATH": PYTHONPATH, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
            variables |= {"TF_CPP_MIN_LOG_LEVEL": "2", **command.variables}
            with (job.folder / f"{number}.log").open("wb") as log:
                try:
                    started = subprocess.Popen(
                        command.words,
                        env={**KEEP_MEMORY, **os.environ, **variables},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                except OSError as error:
                    raise TurnError(f"{job.system}: {command.words[0]} does not start: {error.strerror}") from None
                processes.append(started)
        yield processes
    finally:
        _end(job, processes)


def _end(job: Job, processes: list[subprocess.Popen]) -> None:
    """Ends the processes: launchers first get the time to end their workers."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _END_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # A launcher may have put its workers into sessions of their own.
    for pid in _workers(job):
        with contextlib.suppress(OSError):
            if str(job.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _workers(job: Job) -> list[int]:
    """Returns the processes that have reported that they are ready."""
    return [json.loads(path.read_text()) for path in job.folder.glob("ready.*") if path.suffix != ".partial"]


def _figures(job: Job, processes: list[subprocess.Popen]) -> dict[str, float]:
    size = SYSTEMS[job.system].workers(job.workload)
    deadline = time.monotonic() + DEADLINE_S
    _wait_for(job, processes, [f"ready.{rank}" for rank in range(size)], deadline)
    others = {process.pid for process in processes} - set(_workers(job))
    busy, other_cpu = _busy_s(), sum(map(_cpu_s, others))
    (job.folder / "start").touch()
    names = [f"figures.{rank}" for rank in range(size)]
    _wait_for(job, processes, names, deadline)
    busy, other_cpu = _busy_s() - busy, sum(map(_cpu_s, others)) - other_cpu
    parts = [json.loads((job.folder / name).read_text()) for name in names]
    cpu = sum(part["cpu_s"] for part in parts) + other_cpu
    figures = {
        "samples_per_s": sum(part["samples_per_s"] for part in parts),
        "step_ms": sum(part["step_ms"] for part in parts) / size,
        "peak_gib": sum(part["peak_gib"] for part in parts) + sum(map(_peak_of, others)),
        "busy_elsewhere": max(0.0, busy - cpu) / max(part["wall_s"] for part in parts),
        "loss": sum(part["loss"] for part in parts) / size,
    }
    if job.measures_auc:
        _wait_for(job, processes, ["auc"], deadline)
        figures["auc"] = json.loads((job.folder / "auc").read_text())
    return figures


def _wait_for(job: Job, processes: list[subprocess.Popen], names: list[str], deadline: float) -> None:
    """Waits until files of the job exist."""
    while missing := [name for name in names if not (job.folder / name).exists()]:
        failed = [number for number, process in enumerate(processes) if process.poll() not in (None, 0)]
        late = time.monotonic() > deadline
        if failed or late:
            number = failed[0] if failed else 0
            reason = f"exit code {processes[number].poll()}" if failed else f"no {missing[0]} within {DEADLINE_S} s"
            lines = (job.folder / f"{number}.log").read_text(errors="replace").splitlines()[-30:]
            raise TurnError("\n".join([f"{job.system}: process {number}: {reason}", *lines]))
        time.sleep(0.002)


def _busy_s() -> float:
    """Returns the processor time that all processes of the machine have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    """Returns the processor time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_of(pid: int) -> float:
    try:
        return peak_gib(pid)
    except (OSError, StopIteration):
        return 0.0
