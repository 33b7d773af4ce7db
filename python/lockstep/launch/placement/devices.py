"""The GPUs that a job may use, read from CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES.

The CUDA runtime follows CUDA_VISIBLE_DEVICES. So this variable decides if it is set, also when it is empty (no GPU).
NVIDIA_VISIBLE_DEVICES lists the GPUs of a container: its entries are the *machine's* numbers, while GPUs inside the
container are numbered from 0 again. Sources: the CUDA C++ programming guide, "CUDA environment variables", and the
manual of the NVIDIA container toolkit, "Specialized configurations with Docker".
"""

import glob
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.launch.base.errors import LaunchError

# The first one that is set decides.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_QUERY_TIMEOUT_S = 20
# Files of NVIDIA's driver, and of its driver in Windows' subsystem for Linux.
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dxg")
_INDEX = re.compile(r"\d+$")
_MIG_INDEX = re.compile(r"(\d+):(\d+)$")
_IDENTIFIER = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+$")


@dataclass(frozen=True)
class Gpu:
    """A GPU as `nvidia-smi -L` lists it; `mig` holds the ids of its MIG devices, and is empty if MIG is off."""

    uuid: str
    mig: tuple[str, ...] = ()


@dataclass(frozen=True)
class Devices:
    """The devices that the variables grant.

    Attributes:
      ids: One value of CUDA_VISIBLE_DEVICES per worker. Empty: no GPU.
      granted: Whether one of the variables asks for GPUs or forbids them. If it is set, an empty `ids` is intended.
      note: A message for the user on how the variables were read, or empty.
    """

    ids: tuple[str, ...] = ()
    granted: bool = False
    note: str = ""


def visible_devices(environment: Mapping[str, str]) -> Devices:
    """Reads the devices of this machine's workers from the environment.

    Raises:
      LaunchError: an entry is neither an index nor an id, appears twice, or names a device that is not there.
    """
    for name in VARIABLES:
        if name in environment:
            return _parse(name, environment[name].strip())
    return Devices()


def _parse(name: str, value: str) -> Devices:
    if value in ("", "none", "void", "NoDevFiles"):
        return Devices(granted=True)
    if value == "all":
        gpus = _query_gpus()
        if not gpus:
            return Devices(note=f"{name}=all, but nvidia-smi lists no GPU: running on the CPU")
        return Devices(tuple(device for gpu in gpus for device in (gpu.mig or (gpu.uuid,))), granted=True)
    entries = [entry.strip() for entry in value.split(",")]
    if "-1" in entries:  # CUDA takes the entries before the first invalid one, which is -1 by custom.
        entries = entries[: entries.index("-1")]
    for entry in entries:
        if not (_INDEX.match(entry) or _IDENTIFIER.match(entry) or _MIG_INDEX.match(entry)):
            raise LaunchError(
                f"{name}={value!r}: {entry!r} is not a device; wanted indices (0,1), ids (GPU-, MIG-...), all or none"
            )
        if entries.count(entry) > 1:
            raise LaunchError(f"{name}={value!r}: device {entry} appears twice; each worker needs a GPU of its own")
    if name == "NVIDIA_VISIBLE_DEVICES":
        entries = _renumbered(entries)
    note = ""
    if entries and not _has_gpu():
        seen = ", ".join(_DEVICE_FILES)
        note = f"{name}={value}, but this machine has no NVIDIA GPU ({seen}): running on the CPU"
    return Devices(tuple(entries), granted=True, note=note)


def _has_gpu() -> bool:
    """Returns whether this process can see a GPU, or a part of one."""
    return any(glob.glob(pattern) for pattern in _DEVICE_FILES)


def _renumbered(entries: list[str]) -> list[str]:
    """Translates entries of NVIDIA_VISIBLE_DEVICES to numbers that CUDA understands."""
    if any(_MIG_INDEX.match(entry) for entry in entries):
        return [_mig_device(entry) if _MIG_INDEX.match(entry) else entry for entry in entries]
    if not all(_INDEX.match(entry) for entry in entries):
        return entries
    # With as many GPUs as entries, this process runs inside the container that the variable was set for.
    gpus = _query_gpus()
    if len(gpus) == len(entries):
        return [str(index) for index in range(len(gpus))]
    return entries


def _mig_device(entry: str) -> str:
    gpu, mig = (int(part) for part in entry.split(":"))
    gpus = _query_gpus()
    if gpu >= len(gpus) or mig >= len(gpus[gpu].mig):
        raise LaunchError(f"NVIDIA_VISIBLE_DEVICES: nvidia-smi lists no MIG device {mig} of GPU {gpu}")
    return gpus[gpu].mig[mig]


def _query_gpus() -> list[Gpu]:
    """Returns the GPUs that nvidia-smi lists; none without nvidia-smi or a driver."""
    try:
        query = subprocess.run(
            ["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S
        )
    except (FileNotFoundError, PermissionError):
        return []
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"nvidia-smi -L did not answer in {_QUERY_TIMEOUT_S} s; name the GPUs in CUDA_VISIBLE_DEVICES instead"
        ) from None
    gpus: list[Gpu] = []
    for line in query.stdout.splitlines() if query.returncode == 0 else ():
        found = re.search(r"\(UUID: ((?:GPU|MIG)-[^)]+)\)", line)
        if found and line.startswith("GPU "):
            gpus.append(Gpu(found[1]))
        elif found and gpus:
            gpus[-1] = Gpu(gpus[-1].uuid, (*gpus[-1].mig, found[1]))
    return gpus
