import errno
import os
import resource
import types
from pathlib import Path

import pytest

from lockstep._src.doctor import machine

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

GIB = 1 << 30


@pytest.mark.parametrize(("ranks", "state"), [(1, "ok"), (2, "warning")])
def test_ranks_without_a_processor_of_their_own_are_a_warning(tmp_path, ranks, state):
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    finding = machine.processors(ranks, tmp_path)
    assert (finding.state, finding.seen.split(" (")[0]) == (state, f"1 for {ranks} ranks")
    assert bool(finding.advice) == (state == "warning")


@pytest.mark.parametrize(
    ("cpuinfo", "state", "seen"),
    [
        ("model name\t: A\nflags\t\t: fpu avx avx2 fma\n", "ok", "A: avx, avx2, fma"),
        ("model name\t: A\nflags\t\t: fpu sse2\n", "problem", "A: no vector instructions"),
        ("Features\t: fp asimd\n", "ok", "unknown model: asimd"),
    ],
)
def test_a_processor_without_vector_instructions_is_a_problem(tmp_path, cpuinfo, state, seen):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    finding = machine.cpu_features(tmp_path)
    assert (finding.state, finding.seen) == (state, seen)


@pytest.mark.parametrize(
    ("limit", "ranks", "state"),
    [("max", 2, "ok"), (str(GIB), 1, "ok"), (str(GIB), 2, "warning"), ("max", 9, "warning")],
)
def test_memory_is_that_of_the_machine_or_of_the_control_group(tmp_path, limit, ranks, state):
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    (tmp_path / "memory.max").write_text(limit + "\n")
    finding = machine.memory(ranks, tmp_path, tmp_path)
    assert finding.state == state
    assert finding.seen == "8 GiB available" + ("" if limit == "max" else ", control group's limit 1 GiB")


def test_a_machine_without_proc_is_explained(tmp_path):
    assert machine.memory(1, tmp_path, tmp_path).advice == machine.cpu_features(tmp_path).advice
    assert machine.memory(1, tmp_path, tmp_path).state == machine.cpu_features(tmp_path).state == "warning"


def test_shared_memory_is_tried_and_a_low_limit_is_named():
    assert machine.shared_memory(4, GIB).state == "ok"
    former = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + GIB, former[1]))
        finding = machine.shared_memory(4, GIB)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)
    assert finding.state == "problem"
    assert "4 GiB of address space for 4 ranks cannot be reserved: Cannot allocate memory (ulimit -v is" in finding.seen
    assert "LOCKSTEP_SHARED_BYTES_PER_RANK" in finding.advice


def test_a_system_call_that_a_container_forbids_is_explained(monkeypatch):
    def forbidden(name):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert "seccomp" in machine.shared_memory(1, GIB).advice


@pytest.mark.parametrize(("blocks", "says"), [(256, "a memfd, which this size does not limit"), (1 << 20, "")])
def test_a_small_dev_shm_is_explained(monkeypatch, blocks, says):
    state = types.SimpleNamespace(f_blocks=blocks, f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: state)
    finding = machine.dev_shm()
    assert finding.state == "ok" and says in finding.advice and bool(finding.advice) == bool(says)
    assert finding.seen.startswith("1 MiB, 1 MiB free" if says else "4 GiB")


def test_a_missing_dev_shm_is_explained():
    assert "mount a tmpfs" in machine.dev_shm("/no/such/folder").advice
