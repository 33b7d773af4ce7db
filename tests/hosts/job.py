"""Jobs on emulated hosts without a launcher: each rank has a log, an exit code and a time of its end.

A rank runs a program. Or it runs a function in a fork of a process that has imported TensorFlow, and starts at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.launch.base.environment import replace_environment
from lockstep.testing.emulated_cluster import Host
from lockstep.testing.emulated_host import run_on
from lockstep.testing.workers import fork_server

ROOT = Path(__file__).resolve().parents[2]
_HIDDEN = ("LOCKSTEP_", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_", "HOROVOD_")


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment of a test's workers: this process's, without the variables of its own rank."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    python = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    few = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    # Lookups have two stages, as on hosts with more workers, because more can go wrong there.
    longer = {"HB_USE_HIERARCHICAL_EMBEDDING_LOOKUP": "1"}
    return {**kept, "PYTHONPATH": python, **few, **quiet, **longer, **variables}


class Job:
    """Ranks that run a program on hosts, without a launcher.

    Args:
      hosts: the hosts of the ranks.
      per_host: the number of ranks per host; ranks are numbered host by host.
      work: each rank's work, in `folder`: the words of a command, or a function of a module with its arguments.
      folder: the folder of the logs, `log.<rank>`.
      variables: variables of their environment, in addition to the job's.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        per_host: int,
        work: Sequence[Any],
        folder: Path,
        variables: Mapping[str, str] | None = None,
    ):
        self.folder, self.size = folder, per_host * len(hosts)
        self.host_of = [host for host in hosts for _ in range(per_host)]
        first = hosts[0].address
        shared = {
            "LOCKSTEP_WORLD_SIZE": str(self.size),
            "LOCKSTEP_LOCAL_WORLD_SIZE": str(per_host),
            "LOCKSTEP_RENDEZVOUS": f"[{first}]:7000" if ":" in first else f"{first}:7000",
            "LOCKSTEP_SECRET": secrets.token_hex(16),
        }
        folder.mkdir(exist_ok=True)
        self._processes = []
        for rank, host in enumerate(self.host_of):
            own = {"LOCKSTEP_RANK": str(rank), "LOCKSTEP_LOCAL_RANK": str(rank % per_host)}
            env = environment(**shared, **own, **(variables or {}))
            start = _call if callable(work[0]) else _start
            self._processes.append(start(host, work, env, folder, folder / f"log.{rank}"))

    def pid(self, rank: int) -> int:
        """Returns the number of a rank's process, which is the only child of the process that waits for its end."""
        waits = self._processes[rank].pid
        return int(Path(f"/proc/{waits}/task/{waits}/children").read_text().split()[0])

    def output(self, rank: int) -> str:
        """Returns the output of a rank."""
        return (self.folder / f"log.{rank}").read_text(errors="replace")

    def outputs(self) -> str:
        """Returns the outputs of all ranks."""
        return "\n".join(
            f"--- rank {rank} on host {self.host_of[rank].name}\n{self.output(rank)}" for rank in range(self.size)
        )

    def await_ends(self, ranks: Sequence[int], timeout_s: float) -> dict[int, tuple[int | None, float]]:
        """Waits until some ranks end. Returns exit code (None: it still runs) and seconds from now, by rank."""
        begin, ends = time.monotonic(), {}
        while len(ends) < len(ranks) and time.monotonic() - begin < timeout_s:
            for rank in ranks:
                if rank not in ends and (code := self._processes[rank].poll()) is not None:
                    ends[rank] = code, time.monotonic() - begin
            time.sleep(0.01)
        return {rank: ends.get(rank, (None, timeout_s)) for rank in ranks}

    def expect_all_well(self, timeout_s: float) -> None:
        """Asserts that all ranks succeed in time."""
        ends = self.await_ends(range(self.size), timeout_s)
        assert all(code == 0 for code, _ in ends.values()), f"{ends}\n{self.outputs()}"

    def wait_for(self, path: str, timeout_s: float, may_end: bool = False) -> None:
        """Waits until the folder has a file. A rank that ends before is an error; with `may_end` it ends the wait."""
        end = time.monotonic() + timeout_s
        while not (self.folder / path).exists():
            if any(process.poll() is not None for process in self._processes):
                assert may_end, f"a rank ended before {path}:\n{self.outputs()}"
                return
            assert time.monotonic() < end, f"no {path} after {timeout_s:g} s:\n{self.outputs()}"
            time.sleep(0.01)

    def kill(self) -> None:
        """Kills all ranks."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def running(*arguments: object, **options: object) -> Iterator[Job]:
    """Yields a Job, and ends all of its processes at the end of the block."""
    job = Job(*arguments, **options)
    try:
        yield job
    finally:
        job.kill()


def _start(host: Host, work: Sequence[object], env: Mapping[str, str], folder: Path, log: Path) -> Any:
    with log.open("wb") as output:
        return host.start(work, env=env, cwd=folder, stdout=output, stderr=output)


class _Forked:
    """A process of the fork server, with the interface of subprocess.Popen."""

    def __init__(self, process: Any):
        self._process, self.kill, self.wait = process, process.kill, process.join
        process.start()
        self.pid = process.pid

    def poll(self) -> int | None:
        """Returns its exit code; None while it runs."""
        return self._process.exitcode


def _call(host: Host, work: Sequence[Any], env: Mapping[str, str], folder: Path, log: Path) -> _Forked:
    arguments = (host.pid, str(folder), str(log), dict(env), work)
    return _Forked(fork_server().Process(target=_work, args=arguments))


def _work(host: int, folder: str, log: str, env: dict[str, str], work: Sequence[Any]) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    replace_environment(env)
    function, *arguments = work
    run_on(host, folder, lambda: function(*arguments))
