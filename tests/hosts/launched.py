"""Jobs that the launcher starts on emulated hosts: `--hosts a:2,b:2`, with a stand-in for ssh."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.testing import emulated_ssh
from lockstep.testing.emulated_cluster import Host
from tests.hosts.job import environment

_SSH = f"{sys.executable} {emulated_ssh.__file__}"


@contextlib.contextmanager
def ssh_on(hosts: Sequence[Host], variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """Lets the stand-in for ssh reach the hosts during the block.

    Args:
      hosts: all hosts, or those that came back.
      variables: variables of a login's environment.
    """
    services = []
    # Programs find their imports in the environment of a login, which is this one.
    login = {**os.environ, "PYTHONPATH": environment()["PYTHONPATH"], **(variables or {})}
    for host in hosts:
        service = host.start([*_SSH.split(), "--serve"], env=login, stdout=subprocess.PIPE, text=True)
        services.append(service)
        assert service.stdout.readline() == "ready\n"
    try:
        yield
    finally:
        for service in services:
            service.kill()
            service.wait()


class Launched:
    """A launcher on the first host, and its job.

    Args:
      hosts: hosts with the stand-in for ssh.
      options: options of the launcher.
      command: the workers' command.
      folder: the working folder, which also has `log`.
      variables: variables of the launcher's environment.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        options: Sequence[object],
        command: Sequence[object],
        folder: Path,
        variables: Mapping[str, str] | None = None,
    ):
        self.hosts, self.log = hosts, folder / "log"
        folder.mkdir(exist_ok=True)
        env = environment(LOCKSTEP_SSH=_SSH, **(variables or {}))
        words = [sys.executable, "-m", "hybridbackend.run", *options, *command]
        with self.log.open("wb") as log:
            self.process = hosts[0].start(words, env=env, cwd=folder, stdout=log, stderr=log)

    def output(self) -> str:
        """Returns the launcher's output."""
        return self.log.read_text(errors="replace")

    def pids(self, containing: str) -> list[int]:
        """Returns processes of the job on all hosts, by their command lines: workers, agents, the launcher."""
        return [pid for host in self.hosts for pid in host.pids(containing)]

    def await_end(self, timeout_s: float) -> int:
        """Waits for the launcher's end and returns its exit code; AssertionError after the timeout."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job still runs after {timeout_s:g} s:\n{self.output()}") from None

    def await_no_processes(self, timeout_s: float) -> float:
        """Waits until the job has no process on any host. Returns the seconds."""
        begin = time.monotonic()
        while left := [pid for pid in self.pids("") if not _is_service(pid)]:
            assert time.monotonic() - begin < timeout_s, f"left after {timeout_s:g} s: {[_line(pid) for pid in left]}"
            time.sleep(0.02)
        return time.monotonic() - begin


@contextlib.contextmanager
def launched(*arguments: Any, **options: Any) -> Iterator[Launched]:
    """Yields a Launched, and ends all of its processes at the end of the block."""
    job = Launched(*arguments, **options)
    try:
        yield job
    finally:
        job.process.kill()
        job.process.wait()


def _line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _is_service(pid: int) -> bool:
    return "emulated_ssh.py --serve" in _line(pid)
