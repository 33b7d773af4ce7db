"""Reports of a worker with a GPU, and the options that choose the way of its tensors, on stand-in devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from lockstep.testing.workers import call_workers, run_workers
from tests.standin import plugin

pytestmark = pytest.mark.workers

ROOT = Path(__file__).parents[2]
# The version of the stand-in for NCCL.
_VERSION = 22707


def answers() -> dict[str, Any]:
    plugin.load()
    import horovod.tensorflow as hvd
    import hybridbackend.tensorflow as hb
    from horovod.common import util

    told = {
        "comm_default": hb.context.options.comm_default,
        "nccl_built": hvd.nccl_built(),
        "util": util.nccl_built(),
        "cuda_built": hvd.cuda_built(),
        "rocm_built": hvd.rocm_built(),
    }
    hvd.init()
    total = hvd.allreduce(tf.ones([3]), op=hvd.Sum)
    return {**told, "sum": total.numpy().tolist()}


# Promise (gpu.md): `hvd.nccl_built()` is NCCL's version where NCCL moves tensors, and `comm_default` reads as 'NCCL'.
@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("nccl", {"comm_default": "NCCL", "nccl_built": _VERSION, "util": True, "cuda_built": True}),
        ("staged", {"comm_default": "auto", "nccl_built": 0, "util": False, "cuda_built": True}),
        ("host", {"comm_default": "auto", "nccl_built": 0, "util": False, "cuda_built": False}),
    ],
)
def test_a_worker_reports_how_its_tensors_move(backend, wanted):
    outcomes = call_workers(answers, 2, environment=plugin.environment(backend=backend), timeout_s=120, check=False)
    for outcome in outcomes:
        assert outcome.value == {**wanted, "rocm_built": False, "sum": [2.0] * 3}, outcome
        assert "through the host's memory" not in outcome.output


# Promise (gpu.md): a GPU that the engine cannot use is one warning, and its tensors go through the host's memory.
def test_a_gpu_that_the_engine_cannot_use_is_one_warning(tmp_path):
    environment = {**plugin.environment(), "LOCKSTEP_DEVICE_LIBRARY": "/nowhere/liblockstep_cuda13.so"}
    # Programs of their own: the fork server of functions has loaded the emulated library.
    program = "from tests.standin import options_test; print(options_test.answers())"
    first, second = run_workers(
        2, [sys.executable, "-c", program], environment=environment, cwd=ROOT, timeout_s=120, check=False
    )
    wanted = {
        "comm_default": "auto", "nccl_built": 0, "util": False, "cuda_built": False, "rocm_built": False,
        "sum": [2.0] * 3,
    }  # fmt: skip
    assert str(wanted) in first.output and str(wanted) in second.output, (first, second)
    assert first.output.count("TensorFlow shows a GPU, but its tensors go through the host's memory") == 1
    assert "/nowhere/liblockstep_cuda13.so cannot be loaded" in first.output
    assert "LOCKSTEP_COMM_DEVICE=host" in first.output
    assert "TensorFlow shows a GPU" not in second.output


# Promise (command.md): `lockstep doctor` reports the GPUs that TensorFlow shows, and what workers exchange by.
def test_the_doctor_reports_the_devices(tmp_path, monkeypatch):
    for name, value in {**plugin.environment(devices=2), **plugin.installed(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    words = [sys.executable, "-c", "import sys; from lockstep.command import main; sys.exit(main(sys.argv[1:]))"]
    said = subprocess.run(
        [*words, "doctor", "--no-collectives", "--json"], capture_output=True, text=True, timeout=300, check=True
    )
    (findings,) = json.loads(said.stdout).values()
    found = {finding["name"]: finding for finding in findings}
    assert found["GPUs"]["seen"].startswith("TensorFlow shows 2")
    assert "supports CUDA 13.0" in found["GPU driver"]["seen"]
    assert found["library for GPUs"]["seen"] == f"{plugin.LIBRARY} is loaded (emulator 13.0), and counts 2"
    assert "emulated device 1, compute capability 9.0, 1 GiB free of 1 GiB" in found["GPU 1"]["seen"]
    assert found["peer access"]["seen"] == "between all 2 GPUs"
    assert found["NCCL"]["seen"] == f"2.27.7, from {plugin.NCCL} (LOCKSTEP_NCCL)"
    names = ["GPUs", "GPU driver", "library for GPUs", "GPU 0", "GPU 1", "peer access", "NCCL"]
    assert {found[name]["state"] for name in names} == {"ok"}
