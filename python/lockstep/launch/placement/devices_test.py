import os

import pytest

from lockstep.launch.base.errors import LaunchError
from lockstep.launch.placement import devices
from lockstep.launch.placement.devices import Devices, visible_devices

pytestmark = pytest.mark.newest_only  # no TensorFlow in it

TWO_GPUS = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
"""
MIG_GPU = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
  MIG 3g.20gb     Device  0: (UUID: MIG-1111)
  MIG 3g.20gb     Device  1: (UUID: MIG-2222)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
"""


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Returns a function that puts an nvidia-smi with the given output and exit code first on the path."""

    def install(output: str, code: int = 0):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


@pytest.fixture
def no_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("value", ["", "none", "void", "NoDevFiles", "-1"])
def test_variables_can_forbid_gpus(value):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": value}) == Devices((), granted=True)


def test_without_variables_nothing_is_granted_or_forbidden():
    assert visible_devices({"PATH": "/usr/bin"}) == Devices((), granted=False)


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("3", ("3",)),
        ("2,0", ("2", "0")),
        (" 0 , 1 ", ("0", "1")),
        ("0,1,-1,2", ("0", "1")),
        ("GPU-8932f937-d72c-4106,GPU-77", ("GPU-8932f937-d72c-4106", "GPU-77")),
        ("MIG-1111,MIG-GPU-aaaa/1/0", ("MIG-1111", "MIG-GPU-aaaa/1/0")),
    ],
)
def test_cuda_visible_devices_is_taken_as_written(value, ids):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": value}).ids == ids


def test_cuda_visible_devices_decides_even_when_empty():
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "0,1"}).ids == ()
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "5", "NVIDIA_VISIBLE_DEVICES": "0,1"}).ids == ("5",)


@pytest.mark.parametrize("value", ["0,1,0", "gpu0", "0,,1", "1.5", "0;1", "GPU-"])
def test_a_malformed_list_is_an_error_that_names_it(value):
    with pytest.raises(LaunchError, match="CUDA_VISIBLE_DEVICES="):
        visible_devices({"CUDA_VISIBLE_DEVICES": value})


# Promise (hybridbackend.md): every GPU (HybridBackend, a hang: `NVIDIA_VISIBLE_DEVICES=all`).
def test_all_means_every_gpu_that_nvidia_smi_lists(nvidia_smi):
    nvidia_smi(TWO_GPUS)
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": "all"}) == Devices(("GPU-aaaa", "GPU-bbbb"), granted=True)


def test_all_means_mig_devices_where_a_gpu_is_split(nvidia_smi):
    nvidia_smi(MIG_GPU)
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": "all"}).ids == ("MIG-1111", "MIG-2222", "GPU-bbbb")


def test_all_without_nvidia_smi_says_that_it_runs_on_the_cpu(no_nvidia_smi):
    devices = visible_devices({"NVIDIA_VISIBLE_DEVICES": "all"})
    assert devices.ids == ()
    assert "lists no GPU" in devices.note


def test_all_without_a_driver_says_that_it_runs_on_the_cpu(nvidia_smi):
    nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", code=9)
    devices = visible_devices({"NVIDIA_VISIBLE_DEVICES": "all"})
    assert devices.ids == ()
    assert "lists no GPU" in devices.note


def test_the_machines_numbers_are_renumbered_inside_of_its_container(nvidia_smi):
    nvidia_smi(TWO_GPUS)
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": "3,5"}).ids == ("0", "1")


def test_the_machines_numbers_are_kept_outside_of_a_container(nvidia_smi, no_nvidia_smi):
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": "3"}).ids == ("3",)
    nvidia_smi(TWO_GPUS)
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": "1"}).ids == ("1",)


def test_mig_devices_named_by_two_numbers_are_looked_up(nvidia_smi):
    nvidia_smi(MIG_GPU)
    assert visible_devices({"NVIDIA_VISIBLE_DEVICES": "0:1,0:0"}).ids == ("MIG-2222", "MIG-1111")
    with pytest.raises(LaunchError, match="no MIG device 2 of GPU 0"):
        visible_devices({"NVIDIA_VISIBLE_DEVICES": "0:2"})


def test_gpus_that_the_machine_does_not_have_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "_DEVICE_FILES", (str(tmp_path / "nvidia[0-9]*"),))
    found = visible_devices({"CUDA_VISIBLE_DEVICES": "0,1"})
    assert found.ids == ("0", "1")
    assert found.note.startswith("CUDA_VISIBLE_DEVICES=0,1, but this machine has no NVIDIA GPU")
    assert not visible_devices({"CUDA_VISIBLE_DEVICES": ""}).note
    (tmp_path / "nvidia1").touch()
    assert not visible_devices({"CUDA_VISIBLE_DEVICES": "0,1"}).note
