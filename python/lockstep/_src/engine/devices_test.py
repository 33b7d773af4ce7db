"""How a worker's GPU takes part in a job, without one: TensorFlow and the library for GPUs are replaced.

tests/standin/options_test.py has the same over stand-in devices.
"""

import dataclasses
import logging

import pytest

from lockstep._src.engine import devices, host_memory, library
from lockstep._src.engine.cluster import Cluster
from lockstep._src.engine.context import connection_options
from lockstep._src.engine.options import Options

COUNTS_ONE = {"runtime": "CUDA 13.0", "driver": 13000, "count": 1, "why": "", "devices": []}
NCCL = {"version": 22809, "place": "the system's"}
NO_DRIVER = {**COUNTS_ONE, "count": 0, "driver": 12040, "why": "the driver is too old"}


@pytest.fixture
def machine(monkeypatch):
    """Gives this process a GPU that the engine can use; returns a function that changes the machine."""

    def change(gpu=True, library_counts=COUNTS_ONE, nccl=NCCL):
        monkeypatch.setattr(host_memory, "has_gpu", lambda: gpu)
        monkeypatch.setattr(library, "describe_devices", lambda details: library_counts)
        monkeypatch.setattr(library, "describe_nccl", lambda: nccl)

    devices._warn.cache_clear()
    change()
    return change


def connected(environ, **options):
    made = connection_options(Cluster.from_environment(environ), Options(**options))
    return made.device_backend, made.device_channels, made.device_native_sums, made.backend


def test_a_worker_with_a_gpu_takes_nccl_unless_an_option_chooses_another_backend(machine):
    assert connected({}) == ("nccl", 1, False, "auto")
    assert connected({}, comm_default="NCCL", comm_pool_capacity=3, comm_native_sums=True) == ("nccl", 3, True, "auto")
    assert connected({}, comm_device="staged", comm_default="gloo") == ("staged", 1, False, "gloo")
    assert connected({}, comm_pool_capacity=1 << 40)[1] == 32
    assert connected({}, comm_device="host") == ("", 1, False, "auto")
    machine(gpu=False)
    assert connected({}, comm_device="staged") == ("", 1, False, "auto")


def test_the_environment_sets_the_options():
    options = Options.from_environment({"LOCKSTEP_COMM_DEVICE": "Staged", "LOCKSTEP_COMM_NATIVE_SUMS": "1"})
    assert (options.comm_device, options.comm_native_sums) == ("staged", True)
    with pytest.raises(ValueError, match=r"LOCKSTEP_COMM_DEVICE.*comm_device.*'pigeons'.*'nccl', 'staged', 'host'"):
        Options.from_environment({"LOCKSTEP_COMM_DEVICE": "pigeons"})


# Promise (hybridbackend.md): `comm_default` reads as 'NCCL' on a worker whose tensors NCCL moves.
def test_comm_default_is_nccl_where_nccl_moves_the_tensors(machine):
    options = Options()
    assert options.comm_default == "NCCL"
    options.comm_default = options.comm_default
    assert options.update(comm_default="gloo") == {"comm_default": "auto"}
    assert options.comm_default == "gloo"
    options.update(comm_default="nccl", comm_device="staged")
    assert options.comm_default == "auto"
    machine(nccl={"error": "NCCL cannot be loaded: nowhere"})
    assert Options().comm_default == "auto"
    machine(gpu=False)
    assert Options().comm_default == "auto" and Options(comm_default="NCCL") == Options()


def test_connecting_fixes_the_backend_of_devices():
    options = Options()
    options.set_connected(True)
    for changed in ({"comm_device": "staged"}, {"comm_native_sums": True}):
        with pytest.raises(ValueError, match=f"{next(iter(changed))}.*connected"):
            options.update(**changed)


@pytest.mark.parametrize(
    ("library_counts", "nccl", "says"),
    [
        ({"error": "the library for GPUs is not built; build it: make gpu"}, NCCL, "make gpu"),
        (NO_DRIVER, NCCL, "CUDA 13.0: the driver is too old; install NVIDIA's driver 580 or later"),
        (
            {**NO_DRIVER, "driver": 13000, "why": "no CUDA-capable device"},
            NCCL,
            "CUDA 13.0: no CUDA-capable device. Or",
        ),
        (COUNTS_ONE, {"error": "NCCL cannot be loaded: nowhere; install nvidia-nccl-cu13"}, "nvidia-nccl-cu13"),
    ],
)
def test_a_gpu_that_cannot_take_part_is_one_warning_on_each_host(machine, caplog, library_counts, nccl, says):
    machine(library_counts=library_counts, nccl=nccl)
    second = {
        "LOCKSTEP_RANK": "1",
        "LOCKSTEP_LOCAL_RANK": "1",
        "LOCKSTEP_WORLD_SIZE": "2",
        "LOCKSTEP_LOCAL_WORLD_SIZE": "2",
    }
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        assert connected(second) == ("", 1, False, "auto")
        assert caplog.messages == []
        assert connected({}) == connected({}) == ("", 1, False, "auto")
    (message,) = caplog.messages
    assert says in message and "through the host's memory" in message and "LOCKSTEP_COMM_DEVICE=host" in message


def test_a_gpu_for_which_there_is_no_code_is_an_error(machine, monkeypatch):
    monkeypatch.setattr(host_memory, "compute_capabilities", lambda: {"/physical_device:GPU:0": (7, 5)})
    with pytest.raises(RuntimeError, match=r"GPU:0 has compute capability 7\.5, .* 8\.0 and later: set .*=host"):
        connected({})
    with pytest.raises(RuntimeError, match=r"compute capability 7\.5"):
        connected({}, comm_device="host")
    machine(library_counts={"error": "LOCKSTEP_COMM_DEVICE is 'host', so the library for GPUs is not loaded"})
    assert connected({}) == connected({}, comm_device="host") == ("", 1, False, "auto")


def test_staged_needs_no_nccl(machine):
    machine(nccl={"error": "NCCL cannot be loaded: nowhere"})
    assert connected({}, comm_device="staged")[0] == "staged"
    assert devices.nccl_version(Options(comm_device="staged")) == devices.nccl_version(Options()) == 0
    machine()
    assert devices.nccl_version(Options()) == 22809


def test_the_structure_of_c_has_the_fields():
    names = [name for name, _ in library._ContextOptions._fields_]
    assert set(names) == {field.name for field in dataclasses.fields(library.ConnectionOptions)}
