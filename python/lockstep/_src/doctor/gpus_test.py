import subprocess

import pytest

from lockstep._src.doctor.gpus import gpus

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

H100 = {
    "name": "NVIDIA H100", "major": 9, "minor": 0, "memory_bytes": 80 << 30, "free_bytes": 79 << 30, "peers": [1],
}  # fmt: skip
FOUND = {
    "cuda": True,
    "shown": 2,
    "device_library": "/env/lockstep/liblockstep_cuda13.so",
    "devices": {
        "runtime": "CUDA 13.0", "driver": 13000, "count": 2, "why": "", "devices": [H100, {**H100, "peers": [0]}],
    },
    "nccl": {"version": 22809, "place": "the process's own"},
}  # fmt: skip
KERNEL = "NVRM version: NVIDIA UNIX {}Kernel Module for x86_64  {}  Release Build  (dvs-builder)\nGCC version: 12.2.0\n"


@pytest.fixture(name="states")
def _states(monkeypatch, tmp_path):
    """Returns a function that returns the findings by their names, for a machine with two GPUs."""
    listed = subprocess.CompletedProcess([], 0, "GPU 0: H100 (UUID: GPU-1)\nGPU 1: H100 (UUID: GPU-2)", "")
    monkeypatch.setattr(subprocess, "run", lambda words, **how: listed)

    def states(found, driver="580.65.06", environ=None, open_source=""):
        (tmp_path / "driver" / "nvidia").mkdir(parents=True, exist_ok=True)
        (tmp_path / "driver" / "nvidia" / "version").write_text(KERNEL.format(open_source, driver))
        return {finding.name: finding for finding in gpus(found, environ or {}, tmp_path)}

    return states


@pytest.mark.parametrize(
    ("code", "said", "found", "state"),
    [
        (0, "GPU 0: H100 (UUID: GPU-1)", {}, "ok"),
        (0, "GPU 0: H100 (UUID: GPU-1)", {"cuda": False, "shown": 0}, "warning"),
        (0, "GPU 0: H100 (UUID: GPU-1)", {"cuda": True, "shown": 0}, "warning"),
        (9, "NVIDIA-SMI has failed", {"cuda": True, "shown": 0}, "warning"),
    ],
)
def test_gpus_that_jobs_cannot_use_are_a_warning(monkeypatch, code, said, found, state):
    monkeypatch.setattr(subprocess, "run", lambda words, **how: subprocess.CompletedProcess(words, code, said, ""))
    (finding,) = gpus(found, {})
    assert finding.state == state and said in finding.seen and bool(finding.advice) == (state == "warning")


@pytest.mark.parametrize(("error", "state"), [(FileNotFoundError(), "ok"), (PermissionError("not allowed"), "problem")])
def test_a_machine_without_gpus_is_one_line(monkeypatch, error, state):
    def run(words, **how):
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    (finding,) = gpus({"cuda": False, "shown": 0}, {})
    assert (finding.name, finding.state) == ("GPUs", state)


@pytest.mark.parametrize("open_source", ["", "Open "])
def test_what_workers_use_is_named(states, open_source):
    found = states(FOUND, open_source=open_source)
    assert {finding.state for finding in found.values()} == {"ok"}
    assert list(found) == ["GPUs", "GPU driver", "library for GPUs", "GPU 0", "GPU 1", "peer access", "NCCL"]
    assert "TensorFlow shows 2 (GPU 0: H100" in found["GPUs"].seen
    assert found["GPU driver"].seen == "NVIDIA 580.65.06, supports CUDA 13.0"
    assert found["library for GPUs"].seen == f"{FOUND['device_library']} is loaded (CUDA 13.0), and counts 2"
    assert found["GPU 1"].seen == "NVIDIA H100, compute capability 9.0, 79 GiB free of 80 GiB"
    assert found["NCCL"].seen == "2.28.9, from the process's own"


def _devices(**changed):
    return {**FOUND, "devices": {**FOUND["devices"], **changed}}


@pytest.mark.parametrize(
    ("found", "name", "state", "says", "advises"),
    [
        (_devices(count=0, driver=12040, why="too old", devices=[]), "library for GPUs", "warning", "too old", "580"),
        (_devices(count=0, why="no device", devices=[]), "library for GPUs", "warning", "no device", "nvidia-smi"),
        (
            {**FOUND, "devices": {"error": "it is not built; make gpu"}},
            *("library for GPUs", "warning", "make gpu", "through the host's memory"),
        ),
        (
            {"shown": 2, "ended": "exit code -11"},
            "library for GPUs",
            "problem",
            "exit code -11",
            "LOCKSTEP_COMM_DEVICE",
        ),
        (_devices(devices=[{**H100, "major": 7}]), "GPU 0", "problem", "7.0", "8.0 and later"),
        (_devices(devices=[{"error": "device 0 is lost"}]), "GPU 0", "problem", "is lost", "nvidia-smi"),
        (_devices(devices=[{**H100, "peers": []}, H100]), "peer access", "warning", "GPUs 0 and 1", "topo"),
        ({**FOUND, "nccl": {"error": "NCCL cannot be loaded: no"}}, "NCCL", "warning", "cannot be loaded", "staged"),
    ],
)
def test_a_fault_is_named_with_what_to_do(states, found, name, state, says, advises):
    finding = states(found)[name]
    assert (finding.state, says in finding.seen, advises in finding.advice) == (state, True, True), finding


def test_an_old_driver_is_a_warning(states):
    found = states(FOUND, driver="570.86.15")
    assert found["GPU driver"].state == "warning" and "580 or later" in found["GPU driver"].advice


def test_backends_that_need_less_ask_for_less(states):
    without = {**FOUND, "nccl": {"error": "NCCL cannot be loaded: no"}}
    staged = states(without, environ={"LOCKSTEP_COMM_DEVICE": "staged"})
    assert staged["NCCL"].state == "ok" and "not needed" in staged["NCCL"].seen
    assert list(states(without, environ={"LOCKSTEP_COMM_DEVICE": "host"})) == ["GPUs", "library for GPUs"]
